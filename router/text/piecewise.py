"""Encodes long texts piece by piece and remembers the pieces: what was seen before at the start of a text costs a look-up.

A text is cut where its tokenizer cuts it as well, between a letter and a space that a letter follows, so that the tokens of the
pieces are those of the whole. Two texts that begin alike have the same pieces up to where they part.
"""

import re
import sys
import threading
from array import array
from collections.abc import Callable, Iterator

from tokenizers import Tokenizer

PIECE_CHARACTERS = 4096
LONG_CHARACTERS = 4 * PIECE_CHARACTERS
"""Shorter texts are encoded whole."""
MAX_BYTES = 64 << 20
ENTRY_BYTES = 256

CUT = re.compile(r"[^\W\d_](?= [^\W\d_])")
PROBES = ("alpha beta", "The cat's tail", "Ünïcode wörds", "x y", "слово слова", "Ends here", "don't stop")
"""Each holds one place or more where a text may be cut."""
PRE_TOKENIZERS = frozenset({"ByteLevel", "Digits", "Punctuation", "Split"})
NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})

Encode = Callable[[str], list[int]]


class Pieces:
    """The tokens of pieces of texts, the most recently used ones up to `max_bytes`. Its methods are called on any thread."""

    def __init__(self, encode: Encode, max_bytes: int = MAX_BYTES) -> None:
        self._encode = encode
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._known: dict[str, array[int]] = {}
        self._lock = threading.Lock()

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of `text`, without special ones."""
        tokens = array("I")
        for piece in cut(text):
            tokens += self._tokens(piece)
        return tuple(tokens.tolist())

    def _tokens(self, piece: str) -> "array[int]":
        with self._lock:
            found = self._known.pop(piece, None)
            if found is not None:
                self._known[piece] = found
        return found if found is not None else self._learn(piece)

    def _learn(self, piece: str) -> "array[int]":
        tokens = array("I", self._encode(piece))
        with self._lock:
            if piece not in self._known:
                self._known[piece] = tokens
                self._num_bytes += _size(piece, tokens)
            while self._num_bytes > self._max_bytes:
                oldest = next(iter(self._known))
                self._num_bytes -= _size(oldest, self._known.pop(oldest))
        return tokens


def cut(text: str) -> Iterator[str]:
    """Yield pieces of about PIECE_CHARACTERS, the last one up to twice that; the rest as one where it cannot be cut."""
    start = 0
    while len(text) - start > 2 * PIECE_CHARACTERS:
        found = CUT.search(text, start + PIECE_CHARACTERS, start + 2 * PIECE_CHARACTERS)
        if found is None:
            break
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]


def may_be_cut(tokenizer: Tokenizer, settings: dict[str, object]) -> bool:
    """Return whether the tokens of pieces are those of the whole; `settings` is its tokenizer.json.

    It must split texts before it merges, by rules that look no further than the next character; nothing that it puts in, or
    looks for as a whole, may reach over a space.
    """
    kinds_are_known = _kinds(settings.get("pre_tokenizer"), "pretokenizers") <= PRE_TOKENIZERS
    if not settings.get("pre_tokenizer") or not kinds_are_known:
        return False
    if not _kinds(settings.get("normalizer"), "normalizers") <= NORMALIZERS:
        return False
    added = tokenizer.get_added_tokens_decoder().values()
    if any(token.rstrip or any(map(str.isspace, token.content)) for token in added):
        return False
    return all(_is_cut_alike(tokenizer, probe) for probe in PROBES)


def _is_cut_alike(tokenizer: Tokenizer, probe: str) -> bool:
    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    places = [found.end() for found in CUT.finditer(probe)]
    return all(ids(probe[:place]) + ids(probe[place:]) == ids(probe) for place in places)


def _kinds(told: object, parts: str) -> set[str]:
    if not isinstance(told, dict):
        return set()
    if told["type"] != "Sequence":
        return {told["type"]}
    return {kind for part in told[parts] for kind in _kinds(part, parts)}


def _size(piece: str, tokens: "array[int]") -> int:
    return sys.getsizeof(piece) + sys.getsizeof(tokens) + ENTRY_BYTES
