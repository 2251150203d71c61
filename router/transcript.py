"""The shown text of one answer: what each accepted token adds to it, and whether a stop string has ended it.

The token that ends an answer by rule (an EOS or stop id) counts as a completion token but has no text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from twostep.core.request import FinishReason, StopRules
from twostep.router.detokenize import Detokenizer
from twostep.router.stop_strings import StopStrings


@dataclass(frozen=True, slots=True)
class Piece:
    """A token that counts, and the text that it lets be shown: empty while more has to be seen."""

    token: int
    text: str


class Transcript:
    """`num_tokens` counts the tokens that are billed: none beyond the one that completes a stop string."""

    def __init__(self, detokenizer: Detokenizer, rules: StopRules, stops: Sequence[str] = ()) -> None:
        self._detokenizer = detokenizer
        self._rules = rules
        self._stops = StopStrings(stops)
        self.num_tokens = 0

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has been found: nothing after it counts."""
        return self._stops.matched is not None

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
        finish = self._rules.finish_reason(token, self.num_tokens)
        self.num_tokens += 1
        if finish is FinishReason.STOP:
            return ""
        return self._stops.feed(self._detokenizer.feed(token))

    def flush(self) -> str:
        """Return the text held back so far: there are no more tokens."""
        if self.is_stopped:
            return ""
        return self._stops.feed(self._detokenizer.flush()) + self._stops.flush()
