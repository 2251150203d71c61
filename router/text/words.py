"""Encodes ASCII text word by word, each word once: to cut a text and look its words up takes a fraction of encoding it.

A byte-level BPE tokenizer cuts a text at its added tokens, then into words, and merges inside each word alone.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from tokenizers import Tokenizer

from twostep.router.text.word_rules import Split, UnknownRule, word_splits

MAX_WORDS = 1 << 17
MAX_WORD_CHARACTERS = 64
"""Longer ones are not remembered, so that all that is remembered takes some 40 MB at most."""
MAX_CHARACTERS = 1 << 14
"""Longer texts are left to the library, which lets other threads go on meanwhile: these take a millisecond at most."""
VISIBLE = {code: chr(code if 33 <= code <= 126 else 289 if code == 127 else 256 + code) for code in range(128)}
"""The characters by which byte-level models know the bytes of ASCII."""
PROBE = (
    "It's what they DON'T know: we'LL test\n\n  x = foo(1234567, 'a_b');\t\tif (x >= 2.5e-3) {\r\n"
    ' return "~!@#$%^&*|";  \n }  -- ends\x00here \x1f\x7f, http://a.b/c?d=[e]  \n  '
)
"""It is encoded by both when words are read: where they differ, words are not what the tokenizer merges inside."""

Encode = Callable[[str], list[int]]


class Words:
    """Encodes texts, with `encode` what is not ASCII, or long. Its methods are called on any thread."""

    def __init__(self, splits: Sequence[Split], added: Mapping[str, int], encode_word: Encode, encode: Encode) -> None:
        self._splits = splits
        self._added = added
        # Where several begin at one place, the longest is meant.
        longest_first = sorted(map(re.escape, added), key=len, reverse=True)
        self._at_added = re.compile(f"({'|'.join(longest_first)})") if added else None
        self._encode = encode
        self._known = _Known(encode_word)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text`."""
        parts = self._at_added.split(text) if self._at_added else [text]
        tokens = self._of_part(parts[0])
        for added, part in zip(parts[1::2], parts[2::2], strict=True):
            tokens.append(self._added[added])
            tokens += self._of_part(part)
        return tokens

    def _of_part(self, text: str) -> list[int]:
        if len(text) > MAX_CHARACTERS or not text.isascii():
            return self._encode(text)
        words: Iterable[str] = [text]
        for split in self._splits:
            words = chain.from_iterable(map(split, words))
        return list(chain.from_iterable(map(self._known.__getitem__, words)))


class _Known(dict[str, list[int]]):
    """The tokens of words; those of one that is not known are found out."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode

    def __missing__(self, word: str) -> list[int]:
        tokens = self._encode(word)
        if len(word) <= MAX_WORD_CHARACTERS:
            if len(self) >= MAX_WORDS:
                self.clear()
            self[word] = tokens
        return tokens


def words_of(tokenizer: Tokenizer, settings: Mapping[str, Any], encode: Encode) -> Words | None:
    """Return what encodes as `encode`, the tokenizer of `settings`, does; None where it does not merge inside words alone."""
    tokens = tokenizer.get_added_tokens_decoder()
    if any(token.single_word or token.lstrip or token.rstrip for token in tokens.values()):
        return None
    if settings.get("normalizer") and any(token.normalized for token in tokens.values()):
        return None
    try:
        splits = word_splits(settings)
    except UnknownRule:
        return None
    model = tokenizer.model
    added = {token.content: number for number, token in tokens.items()}
    words = Words(splits, added, lambda word: [token.id for token in model.tokenize(word.translate(VISIBLE))], encode)
    return words if words.encode(PROBE) == encode(PROBE) else None
