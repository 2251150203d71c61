"""The shown text of one answer: what each accepted token adds to it, and whether a stop string has ended it.

The token that ends an answer by rule (an EOS or stop id) counts as a completion token but has no text.
"""

from collections.abc import Sequence
from typing import NamedTuple

from twostep.core.request import StopRules
from twostep.router.text.detokenize import Detokenizer
from twostep.router.text.stop_strings import StopStrings


class Piece(NamedTuple):
    """A token that counts, and the text that it lets be shown: empty while more has to be seen."""

    token: int
    text: str


class Transcript:
    """`num_tokens` counts the tokens that are billed: none beyond the one that completes a stop string."""

    def __init__(self, detokenizer: Detokenizer, rules: StopRules, stops: Sequence[str] = ()) -> None:
        self._detokenizer = detokenizer
        self._rules = rules
        self._stops = StopStrings(stops) if stops else None
        self.num_tokens = 0
        self.is_stopped = False
        """Whether a stop string has been found: nothing after it counts."""

    def pieces(self, tokens: Sequence[int]) -> list[Piece]:
        """Return those of `tokens` that count, with the text that each lets be shown."""
        pieces: list[Piece] = []
        for token in tokens:
            if self.is_stopped:
                break
            pieces.append(Piece(token, self.add(token)))
        return pieces

    def add(self, token: int) -> str:
        """Return the text that `token` lets be shown; empty after a stop string."""
        if self.is_stopped:
            return ""
        self.num_tokens += 1
        return "" if self._rules.stops_at(token) else self._shown(self._detokenizer.feed(token))

    def flush(self) -> str:
        """Return the text held back so far: there are no more tokens."""
        if self.is_stopped:
            return ""
        shown = self._shown(self._detokenizer.flush())
        return shown + self._stops.flush() if self._stops else shown

    def _shown(self, text: str) -> str:
        if self._stops is None:
            return text
        shown = self._stops.feed(text)
        self.is_stopped = self._stops.matched is not None
        return shown
