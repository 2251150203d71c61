"""Tokens of pieces are those of the whole, pieces that were seen are not encoded again, and what is remembered is bounded."""

import json
import random
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, pre_tokenizers
from tokenizers.models import BPE

from twostep.router.text.piecewise import CUT, LONG_CHARACTERS, PIECE_CHARACTERS, Pieces, cut, may_be_cut
from twostep.router.text.tokenizer import FolderTokenizer
from twostep.tests.router.tiny_tokenizer import byte_level_tokenizer, write_folder

ALPHABET = "he llo wörld  \n\t12 3,4.'s<|im_start|>слово 漢字 _-"


def a_text(seed: int, num_characters: int = 3 * LONG_CHARACTERS) -> str:
    chance = random.Random(seed)
    return "".join(chance.choice(ALPHABET) for _ in range(num_characters))


def settings_of(tokenizer: Tokenizer) -> dict[str, object]:
    told: dict[str, object] = json.loads(tokenizer.to_str())
    return told


@pytest.mark.parametrize("seed", range(5))
def test_the_tokens_of_the_pieces_are_those_of_the_whole(seed: int, tmp_path: Path) -> None:
    tokenizer, text = byte_level_tokenizer(), a_text(seed)
    assert "".join(cut(text)) == text
    assert len(list(cut(text))) > 5
    in_pieces = FolderTokenizer(write_folder(tmp_path / "m")).encode(text)
    assert list(in_pieces) == tokenizer.encode(text, add_special_tokens=False).ids


def test_texts_that_begin_alike_have_the_same_pieces_until_they_part() -> None:
    common = a_text(1)
    one, other = list(cut(common + " a end")), list(cut(common + " another end of it"))
    assert one[:-1] == other[: len(one) - 1]


def test_only_what_was_not_seen_is_encoded() -> None:
    encoded: list[str] = []

    def encode(piece: str) -> list[int]:
        encoded.append(piece)
        return [len(piece)]

    pieces, text = Pieces(encode), a_text(2)
    first = pieces.encode(text)
    num_first = len(encoded)
    assert pieces.encode(text) == first
    assert len(encoded) == num_first
    pieces.encode(text + "x y" * 10)
    assert len(encoded) == num_first + 1


def test_what_is_remembered_keeps_its_budget_and_forgets_the_least_recently_used() -> None:
    encoded: list[str] = []

    def encode(piece: str) -> list[int]:
        encoded.append(piece)
        return [1]

    pieces = Pieces(encode, max_bytes=2 * (PIECE_CHARACTERS + 1000))
    a, b, c = (letter * PIECE_CHARACTERS for letter in "abc")
    for piece in (a, b, a, c, a, b):
        pieces.encode(piece)
    assert [piece[0] for piece in encoded] == ["a", "b", "c", "b"]


def test_a_text_that_cannot_be_cut_is_one_piece() -> None:
    assert list(cut("漢" * LONG_CHARACTERS)) == ["漢" * LONG_CHARACTERS]


def test_a_cut_is_before_a_space_between_letters() -> None:
    assert [found.end() for found in CUT.finditer("ab c1 d 2e f  g_ h i")] == [2, 10, 18]


def test_a_tokenizer_that_merges_over_spaces_is_not_cut() -> None:
    tokenizer = byte_level_tokenizer()
    assert may_be_cut(tokenizer, settings_of(tokenizer))
    whole = Tokenizer(BPE({"a": 0, " ": 1, "b": 2, "a ": 3}, [("a", " ")]))
    assert not may_be_cut(whole, settings_of(whole))
    whole.pre_tokenizer = pre_tokenizers.Metaspace()
    assert not may_be_cut(whole, settings_of(whole))


def test_a_tokenizer_with_a_special_token_that_eats_spaces_is_not_cut() -> None:
    for token in (AddedToken("<x>", special=True, rstrip=True), AddedToken("a b")):
        tokenizer = byte_level_tokenizer()
        tokenizer.add_tokens([token])
        assert not may_be_cut(tokenizer, settings_of(tokenizer))
