"""The waiting queue of a node: in an order that is asked for anew each time, with a bounded number passing a big one."""

import enum
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from twostep.core.clock import Clock
from twostep.node.bypass import Passed, Patience, may_pass

T = TypeVar("T")
MAX_IN_VAIN = 16
"""So many are tried in vain at once; those behind them wait for the next time that something is given back."""


class Tried(enum.Enum):
    """What came of trying to admit one."""

    ADMITTED = "admitted"
    GONE = "gone"
    """It has ended: it waits no more."""
    NO_ROOM = "no_room"
    """Others hold what it needs: whoever passes it delays it."""
    NOT_YET = "not_yet"
    """It waits for something of its own: nobody who passes it delays it."""
    GROUP_FULL = "group_full"
    """Its group has as much as it may: those of another who pass it do not delay it, and none of its own does pass it."""


STILL_WAITS = frozenset({Tried.NO_ROOM, Tried.NOT_YET, Tried.GROUP_FULL})


@dataclass(slots=True, eq=False)
class _Waiter(Generic[T]):
    item: T
    is_first: bool = False
    since: float | None = None
    num_passes: int = 0

    def passed(self, now: float) -> Passed:
        return Passed(self.num_passes, 0.0 if self.since is None else now - self.since)


class WaitingQueue(Generic[T]):
    """Those who wait for memory. Owned by the control thread.

    `try_admit(item)` takes everything the item needs, or nothing. `order(items)` returns the places of items, given as they
    came, in the order in which they are to be served; unset: as they came. `group(item)` tells who shares what a group may have
    at most. `on_bypass` is called when one has passed others.
    """

    def __init__(
        self,
        try_admit: Callable[[T], Tried],
        clock: Clock,
        patience: Patience,
        *,
        order: Callable[[Sequence[T]], Sequence[int]] = lambda items: range(len(items)),
        group: Callable[[T], Hashable] = id,
        on_bypass: Callable[[], None] = lambda: None,
    ) -> None:
        self._try_admit = try_admit
        self._clock = clock
        self._patience = patience
        self._order = order
        self._group = group
        self._on_bypass = on_bypass
        self._waiting: deque[_Waiter[T]] = deque()
        self._advancing = False
        self._again = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        """The items in the order in which they are served."""
        return iter([waiter.item for waiter in self._in_order()])

    def append(self, item: T) -> None:
        """Queue `item` last and admit whoever can be."""
        self._waiting.append(_Waiter(item))
        self.advance()

    def prepend(self, item: T) -> None:
        """Queue `item` first, whatever the order: it had been admitted before."""
        self._waiting.appendleft(_Waiter(item, is_first=True))
        self.advance()

    def remove(self, item: T) -> bool:
        """Take `item` out wherever it stands; returns whether it stood there."""
        found = next((waiter for waiter in self._waiting if waiter.item is item), None)
        if found is None:
            return False
        self._waiting.remove(found)
        self.advance()
        return True

    def advance(self) -> None:
        """Admit whoever can be, in order; called whenever something was given back, also while it is at work."""
        self._again = True
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._again:
                self._again = False
                self._advance_once()
        finally:
            self._advancing = False

    def _advance_once(self) -> None:
        blocked: list[_Waiter[T]] = []
        full: set[Hashable] = set()
        num_in_vain = 0
        for waiter in self._in_order():
            if waiter not in self._waiting or self._group(waiter.item) in full:
                continue
            tried = self._try_admit(waiter.item)
            if tried is Tried.GROUP_FULL:
                full.add(self._group(waiter.item))
            num_in_vain += tried in STILL_WAITS
            self._take_up(tried, waiter, blocked)
            if num_in_vain == MAX_IN_VAIN or not self._may_pass(blocked):
                return

    def _in_order(self) -> list[_Waiter[T]]:
        if not self._waiting:
            # Asked at every turn, and an order is made of the engine's state.
            return []
        first = [waiter for waiter in self._waiting if waiter.is_first]
        others = [waiter for waiter in self._waiting if not waiter.is_first]
        return first + [others[place] for place in self._order([waiter.item for waiter in others])]

    def _take_up(self, tried: Tried, waiter: _Waiter[T], blocked: list[_Waiter[T]]) -> None:
        if tried is Tried.NO_ROOM:
            waiter.since = self._clock() if waiter.since is None else waiter.since
            blocked.append(waiter)
        elif tried not in STILL_WAITS and waiter in self._waiting:
            self._waiting.remove(waiter)
        if tried is Tried.ADMITTED and blocked:
            self._on_bypass()
            for one in blocked:
                one.num_passes += 1

    def _may_pass(self, blocked: list[_Waiter[T]]) -> bool:
        now = self._clock()
        return may_pass((one.passed(now) for one in blocked), self._patience)
