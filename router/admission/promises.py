"""Who was refused and told when to come back: room is kept for them, so that what they were told is true. Pure."""

from bisect import bisect_right, insort

from twostep.router.admission.backlog import Backlog
from twostep.router.admission.demand import Entry

MAX_PROMISES = 65536
EARLY_S = 0.25
"""So much before its time one who was told to come back is let in: clocks and timers differ."""
LATE_S = 15.0
"""So long after it a place is kept."""


class Promises:
    """Who was told to come back when: room is kept for them. A request is recognized when it comes again as it was."""

    def __init__(self) -> None:
        self.all = Backlog()
        self._due: dict[tuple[str, int], tuple[float, Entry]] = {}
        self._schedule: list[tuple[float, tuple[str, int]]] = []

    def make(self, entry: Entry, wait_s: float, now: float) -> float:
        """Keep room from the time on that a request is told; returns in how many seconds that is."""
        known = self._due.get(entry.recognized)
        if known and known[0] > now:
            return known[0] - now
        if len(self._due) < MAX_PROMISES:
            self.keep(entry)
            self._due[entry.recognized] = now + wait_s, entry
            insort(self._schedule, (now + wait_s, entry.recognized))
            self.all.add(entry)
        return wait_s

    def is_due(self, entry: Entry, now: float) -> bool:
        """Return whether somebody was told to come at about this time."""
        known = self._due.get(entry.recognized)
        return known is not None and now >= known[0] - EARLY_S

    def keep(self, entry: Entry) -> None:
        """Who was expected has come."""
        if known := self._due.pop(entry.recognized, None):
            self.all.remove(known[1])

    def until(self, moment: float) -> Backlog:
        """Return what those ask for who are expected until then."""
        found = Backlog()
        for due, key in self._schedule:
            if due > moment:
                break
            known = self._due.get(key)
            if known and known[0] == due:
                found.add(known[1])
        return found

    def expire(self, now: float) -> None:
        """Who has not come for long is not expected any more."""
        num_past = bisect_right(self._schedule, now - LATE_S, key=lambda one: one[0])
        for due, key in self._schedule[:num_past]:
            known = self._due.get(key)
            if known and known[0] == due:
                del self._due[key]
                self.all.remove(known[1])
        del self._schedule[:num_past]
