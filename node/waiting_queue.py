"""The waiting queue of a node: first come, first served, and everybody knows their position."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from twostep.core.clock import Clock

T = TypeVar("T")
SMOOTHING = 0.2
"""Weight of the newest interval in the running mean of the time between two admissions."""


class WaitingQueue(Generic[T]):
    """Those who wait for memory. Owned by the control thread.

    `try_admit(item)` takes everything the item needs, or nothing; it returns whether the item has left the queue.
    """

    def __init__(self, try_admit: Callable[[T], bool], clock: Clock) -> None:
        self._try_admit = try_admit
        self._clock = clock
        self._waiting: deque[T] = deque()
        self._advancing = False
        self._interval_s = 0.0
        self._admitted_at: float | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting)

    def append(self, item: T) -> None:
        """Queue `item` last and admit whoever can be."""
        self._waiting.append(item)
        self.advance()

    def prepend(self, item: T) -> None:
        """Queue `item` first: it had been admitted before."""
        self._waiting.appendleft(item)
        self.advance()

    def remove(self, item: T) -> bool:
        """Take `item` out wherever it stands; returns whether it stood there."""
        if item not in self._waiting:
            return False
        self._waiting.remove(item)
        self.advance()
        return True

    def advance(self) -> None:
        """Admit from the front until somebody has to wait; called whenever something was given back."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._waiting and self._try_admit(item := self._waiting[0]):
                self._measure()
                if self._waiting and self._waiting[0] is item:
                    self._waiting.popleft()
        finally:
            self._advancing = False

    def estimate_s(self, position: int) -> float:
        """Return how long the one at `position` (from 0) will wait at the recent pace; 0 while there is no pace yet."""
        return (position + 1) * self._interval_s

    def _measure(self) -> None:
        now = self._clock()
        if self._admitted_at is not None:
            self._interval_s += SMOOTHING * (now - self._admitted_at - self._interval_s)
        self._admitted_at = now
