"""Virtual time: everything that will happen, in one order that a seed decides, and a record of what has happened."""

import heapq
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

ASK_S = 0.05


class Life(Protocol):
    """Whose event it is: a dead process's never happens, a frozen one's happens when it goes on."""

    name: str
    is_dead: bool

    def run(self, what: Callable[[], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class Violation:
    """What must never happen, and did."""

    invariant: str
    message: str
    at_s: float

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message} (at {self.at_s:.3f} s)"


@dataclass(frozen=True, slots=True)
class Line:
    at_s: float
    process: str
    what: str

    def __str__(self) -> str:
        return f"{self.at_s:9.4f}  {self.process:<4} {self.what}"


class World:
    """Owns time and chance. `keeps_trace`: keep what happens as text, beside its digest."""

    def __init__(self, seed: int, *, keeps_trace: bool = False) -> None:
        self.now = 0.0
        self.violations: list[Violation] = []
        self.lines: list[Line] = []
        self.keeps_trace = keeps_trace
        self.digest = 0
        self.num_events = 0
        self.sliced = 0.0
        """How many of the turns that take time are left in their middle."""
        self._seed = seed
        self._heap: list[tuple[float, float, int, Life | None, Callable[[], None]]] = []
        self._num_pushed = 0
        self._ties = self.chance("ties")

    def chance(self, name: str) -> random.Random:
        """Return a source of chance of its own: what one part draws changes nothing for the others."""
        return random.Random(f"{self._seed}/{name}")

    def at(self, when: float, life: Life | None, what: Callable[[], None]) -> None:
        """Let `what` happen at `when`, not before now; of several at the same moment chance decides."""
        self._num_pushed += 1
        heapq.heappush(self._heap, (max(when, self.now), self._ties.random(), self._num_pushed, life, what))

    def after(self, delay_s: float, life: Life | None, what: Callable[[], None]) -> None:
        self.at(self.now + delay_s, life, what)

    def run_until(self, is_over: Callable[[], bool], *, limit_s: float) -> bool:
        """Let things happen until `is_over`, asked now and then, or until `limit_s`. Returns whether it is over."""
        heap, ask_at = self._heap, self.now
        while heap and not self.violations:
            if heap[0][0] > limit_s:
                self.now = limit_s
                return is_over()
            self.now, _, _, life, what = heapq.heappop(heap)
            self.num_events += 1
            if life is None:
                what()
            elif not life.is_dead:
                life.run(what)
            if self.now >= ask_at:
                ask_at = self.now + ASK_S
                if is_over():
                    return True
        return is_over()

    def note(self, process: str, what: str) -> None:
        """Record something that happened: two runs of a seed must record the same."""
        self.digest = zlib.crc32(f"{self.now!r}{process}{what}".encode(), self.digest)
        if self.keeps_trace:
            self.lines.append(Line(self.now, process, what))

    def violate(self, invariant: str, message: str) -> None:
        self.violations.append(Violation(invariant, message, self.now))
        self.note("!", f"{invariant}: {message}")
