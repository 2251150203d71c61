"""What goes wrong in a run: an explicit list, drawn up front, so that a failing one can be made shorter."""

import enum
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace


class Fate(enum.StrEnum):
    """What becomes of one call, or of one write."""

    UNSENT = "is not sent: unavailable at once"
    LOST = "is lost"
    LATE = "is late"
    DOUBLED = "is executed twice"
    ANSWER_LOST = "is executed, its answer is lost"
    ANSWER_BROKEN = "is executed, but the connection breaks"
    ANSWER_LATE = "is executed, its answer is late"

    SLOW = "lands late"
    CORRUPT = "lands with a wrong bit"
    FAILED = "fails"
    FAILED_BUT_LANDS = "fails, but lands later"
    SEEN_EARLY = "is seen as done before it has landed"
    STUCK = "stays pending for long"
    NOTE_LOST = "lands without its notification"
    NOTE_DOUBLED = "lands with two notifications"
    NOTE_EARLY = "is announced before it lands"
    NOTE_LATE = "is announced late"


CALL_FATES = (Fate.UNSENT, Fate.LOST, Fate.LATE, Fate.DOUBLED, Fate.ANSWER_LOST, Fate.ANSWER_BROKEN, Fate.ANSWER_LATE)
WRITE_FATES = tuple(fate for fate in Fate if fate not in CALL_FATES)
HARMLESS = frozenset({Fate.NOTE_LOST, Fate.NOTE_DOUBLED, Fate.NOTE_EARLY, Fate.NOTE_LATE})
"""Fates that must cost nobody anything: notifications only trigger early copies."""


@dataclass(frozen=True, slots=True)
class MessageFault:
    """The `nth` call (from 1) of `method` in the whole run, or the nth write for `write`, meets a fate."""

    method: str
    nth: int
    fate: Fate
    delay_s: float = 0.0

    def __str__(self) -> str:
        late = f" by {self.delay_s:.3g} s" if self.delay_s else ""
        return f"{self.method} number {self.nth} {self.fate}{late}"


class Act(enum.StrEnum):
    KILL = "is killed"
    FREEZE = "is frozen"
    HANG = "has a hung engine"
    DRAIN = "is told to stop"
    PARTITION = "hears nothing of"
    CUT = "loses its connections to"


@dataclass(frozen=True, slots=True)
class When:
    """`delay_s` after the `nth` call of `method` (or write), or after the start of the storm where `method` is empty."""

    method: str
    nth: int
    delay_s: float

    def __str__(self) -> str:
        return f"{self.delay_s:.3f} s after " + (f"{self.method} number {self.nth}" if self.method else "the start")


@dataclass(frozen=True, slots=True)
class NodeFault:
    """`for_s`: until it goes on, is started anew, or is heard again. `other` is the second process of a broken link.

    `process` may be `CALLER` or `CALLED`: an end of the call that the fault waits for.
    """

    act: Act
    process: str
    when: When
    for_s: float
    other: str = ""

    def __str__(self) -> str:
        other = f" {self.other}" if self.other else ""
        return f"{self.process} {self.act}{other}, {self.when}, for {self.for_s:.3g} s"


Fault = MessageFault | NodeFault
CALLER, CALLED = "its caller", "whoever it calls"


class FaultPlan:
    """Says what becomes of each call and write, and begins the node faults that wait for one."""

    def __init__(self, faults: Iterable[Fault], begin: Callable[[NodeFault], None]) -> None:
        self._messages: dict[tuple[str, int], MessageFault] = {}
        self._waiting: dict[tuple[str, int], list[NodeFault]] = {}
        self._begin = begin
        self._counts: Counter[str] = Counter()
        self.happened: list[Fault] = []
        self.is_open = False
        """Nothing goes wrong, nor is counted, before the nodes know each other."""
        self.at_start: list[NodeFault] = []
        for fault in faults:
            if isinstance(fault, MessageFault):
                self._messages[fault.method, fault.nth] = fault
            elif fault.when.method:
                self._waiting.setdefault((fault.when.method, fault.when.nth), []).append(fault)
            else:
                self.at_start.append(fault)

    def open(self) -> None:
        self.is_open = True
        for fault in self.at_start:
            self._happen(fault)

    def meet(self, method: str, caller: str = "", called: str = "") -> MessageFault | None:
        """Count one more of `method` and return what it meets."""
        if not self.is_open:
            return None
        self._counts[method] += 1
        key = method, self._counts[method]
        for fault in self._waiting.pop(key, ()):
            self._happen(replace(fault, process={CALLER: caller, CALLED: called}.get(fault.process, fault.process)))
        met = self._messages.get(key)
        self.happened += [met] if met else []
        return met

    def _happen(self, fault: NodeFault) -> None:
        self.happened.append(fault)
        self._begin(fault)
