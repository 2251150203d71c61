"""The shown text of one answer: what each accepted token adds to it, and whether a stop string has ended it.

The token that ends an answer by rule (an EOS or stop id) counts as a completion token but has no text.
"""

from collections.abc import Sequence

from twostep.core.request import StopRules
from twostep.router.text.detokenize import Detokenizer
from twostep.router.text.stop_strings import StopStrings

Piece = tuple[int, str]
"""A token that counts, and the text that it lets be shown: empty while more has to be seen."""


class Transcript:
    """`num_tokens` counts the tokens that are billed: none beyond the one that completes a stop string."""

    def __init__(self, detokenizer: Detokenizer, rules: StopRules, stops: Sequence[str] = ()) -> None:
        self._detokenizer = detokenizer
        self._silent = rules.ending
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
            text = "" if token in self._silent else self._detokenizer.feed(token)
            pieces.append((token, self._shown(text, self._stops) if self._stops else text))
        self.num_tokens += len(pieces)
        return pieces

    def flush(self) -> str:
        """Return the text held back so far: there are no more tokens."""
        if self.is_stopped:
            return ""
        rest = self._detokenizer.flush()
        return self._shown(rest, self._stops) + self._stops.flush() if self._stops else rest

    def _shown(self, text: str, stops: StopStrings) -> str:
        shown = stops.feed(text)
        self.is_stopped = stops.matched is not None
        return shown
