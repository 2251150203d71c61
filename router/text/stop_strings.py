"""Finds stop strings in streamed text, across the borders of tokens; holds back text that may still become one."""

from collections.abc import Sequence


class StopStrings:
    """Pure: text in, text that may be shown out. Once a stop string is seen, nothing more is shown."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take new text and return what is now certain to be shown.

        The stop string that is complete first wins, then the one that begins first: so the cut into pieces never matters.
        """
        if self.matched is not None:
            return ""
        self._held += text
        found = [stop for stop in self._stops if stop in self._held]
        if found:
            self.matched = min(found, key=lambda stop: (self._held.find(stop) + len(stop), -len(stop)))
            return self._release(self._held.find(self.matched), keep_rest=False)
        return self._release(len(self._held) - self._undecided(), keep_rest=True)

    def flush(self) -> str:
        """Return what is still held back: no more text will come."""
        return self._release(len(self._held), keep_rest=False)

    def _release(self, end: int, *, keep_rest: bool) -> str:
        shown, self._held = self._held[:end], self._held[end:] if keep_rest else ""
        return shown

    def _undecided(self) -> int:
        """Return the length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
