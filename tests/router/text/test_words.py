"""The tokens of words are those of the whole text, by whatever rules a tokenizer cuts; where it does not, nothing is cut."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from twostep.router.text import words
from twostep.router.text.word_rules import UnknownRule, in_ascii
from twostep.router.text.words import Words, words_of
from twostep.tests.router.tiny_tokenizer import byte_level_tokenizer

LLAMA = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MERGES = [
    ("h", "e"),
    ("Ġ", "t"),
    ("Ġt", "he"),
    ("Ġ", "Ġ"),
    ("1", "2"),
    ("'", "s"),
    ("Ċ", "Ċ"),
    ("a", "b"),
    (".", "."),
    ("E", "N"),
]
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
FAMILIES = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]),
    "digit runs": pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(False)]),
    "llama-3": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA), "isolated"), BYTES]),
    "gpt-4o": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GPT4O), "isolated"), BYTES]),
    "deepseek": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), pre_tokenizers.Split(Regex("[一-龥]+"), "isolated"), BYTES]
    ),
}
ADDED = ("<|im_start|>", "<|im_end|>", "<|im", "ab")
TEXTS = st.lists(
    st.one_of(st.text(max_size=4), st.text(alphabet="abhestEN12 '.\n\r\t\x00\x1f", max_size=12), st.sampled_from(ADDED)),
    max_size=12,
).map("".join)


def a_tokenizer(family: str) -> Tokenizer:
    vocab = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for pair in MERGES:
        vocab["".join(pair)] = len(vocab)
    tokenizer = Tokenizer(BPE(vocab, MERGES))
    tokenizer.pre_tokenizer = FAMILIES[family]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ADDED])
    return tokenizer


def read(tokenizer: Tokenizer, **changes: Any) -> Words | None:
    settings = json.loads(tokenizer.to_str())
    return words_of(tokenizer, {**settings, **changes}, lambda text: ids_of(tokenizer, text))


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


TOKENIZERS = {family: a_tokenizer(family) for family in FAMILIES}
READ = {family: read(tokenizer) for family, tokenizer in TOKENIZERS.items()}


@pytest.mark.parametrize("family", FAMILIES)
@given(text=TEXTS)
def test_the_tokens_of_words_are_those_of_the_whole(family: str, text: str) -> None:
    known = READ[family]
    assert known
    assert known.encode(text) == ids_of(TOKENIZERS[family], text)


def test_a_word_is_encoded_once_and_a_long_one_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []

    def encode(word: str) -> list[int]:
        encoded.append(word)
        return [len(word)]

    monkeypatch.setattr(words, "MAX_WORDS", 2)
    known = Words([str.split], {}, encode, encode)
    long = "x" * (words.MAX_WORD_CHARACTERS + 1)
    assert known.encode(f"a bb a {long} {long} bb") == [1, 2, 1, len(long), len(long), 2]
    assert encoded == ["a", "bb", long, long]
    known.encode("ccc a")
    assert encoded[4:] == ["ccc", "a"]


def test_what_is_not_ascii_is_encoded_as_a_whole() -> None:
    known = Words([str.split], {"<x>": 7}, lambda word: [1], lambda text: [len(text)])
    assert known.encode("a b<x>é é<x>") == [1, 1, 7, 3, 7]


def test_a_long_text_is_left_to_the_library() -> None:
    known = Words([str.split], {}, lambda word: [1], lambda text: [len(text)])
    assert known.encode("x " * (words.MAX_CHARACTERS // 2)) == [1] * (words.MAX_CHARACTERS // 2)
    assert known.encode("x" * (words.MAX_CHARACTERS + 1)) == [words.MAX_CHARACTERS + 1]


@pytest.mark.parametrize(
    "token", [AddedToken("<x>", lstrip=True), AddedToken("<x>", rstrip=True), AddedToken("<x>", single_word=True)]
)
def test_added_tokens_that_look_beside_themselves_are_left_to_the_tokenizer(token: AddedToken) -> None:
    tokenizer = a_tokenizer("gpt-2")
    assert read(tokenizer)
    tokenizer.add_tokens([token])
    assert read(tokenizer) is None


def test_tokenizers_that_do_more_than_merge_inside_words_are_not_taken_apart() -> None:
    tokenizer = a_tokenizer("gpt-2")
    spaces = Tokenizer(BPE({"a": 0, " ": 1, "a ": 2}, [("a", " ")]))
    assert read(spaces) is None
    spaces.pre_tokenizer = pre_tokenizers.Metaspace()
    assert read(spaces) is None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert read(tokenizer) is None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), BYTES])
    assert read(tokenizer) is None
    lower = byte_level_tokenizer()
    lower.normalizer = normalizers.Lowercase()
    assert read(lower) is None


def test_rules_that_are_read_wrong_are_found_out() -> None:
    told = json.loads(a_tokenizer("smollm").to_str())
    assert read(a_tokenizer("gpt-2"), pre_tokenizer=told["pre_tokenizer"]) is None


@pytest.mark.parametrize("pattern", [r"\w+", r"\p{Greek}+", r"(a)|b[[:alpha:]]", r"[a&&[b]]", "("])
def test_a_rule_that_is_not_known_is_refused(pattern: str) -> None:
    with pytest.raises(UnknownRule):
        in_ascii(pattern)


def test_random_texts_of_one_alphabet_are_cut_alike() -> None:
    chance = random.Random(1)
    alphabet = "he the12 '.\n\r\t(){}ENd<|im_start|>"
    for family, tokenizer in TOKENIZERS.items():
        known = READ[family]
        assert known
        text = "".join(chance.choice(alphabet) for _ in range(3000))
        assert known.encode(text) == ids_of(tokenizer, text), family
