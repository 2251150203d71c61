"""Time in which a process could act: what passed while it was stopped or starved is not held against anybody else."""

from twostep.core.clock import Clock


class AwakeClock:
    """A `Clock` that needs a `tick` at least every `max_gap_s` seconds; of a longer gap it counts that much.

    A process that was stopped (SIGSTOP, a paused machine, a long collection of garbage) has heard nobody meanwhile. By this
    clock neither a router's lease nor a peer's progress runs out because of that. Ticks come from one thread, any may read.
    """

    def __init__(self, clock: Clock, max_gap_s: float) -> None:
        self._clock = clock
        self._max_gap_s = max_gap_s
        # Replaced as a whole: readers on other threads never see one half of a tick.
        self._ticked_at_and_lost = clock(), 0.0

    def __call__(self) -> float:
        ticked_at, lost = self._ticked_at_and_lost
        return min(self._clock(), ticked_at + self._max_gap_s) - lost

    def tick(self) -> float:
        """Note that the process is awake. Returns how many seconds of the gap before are not counted."""
        now = self._clock()
        ticked_at, lost = self._ticked_at_and_lost
        asleep = max(0.0, now - ticked_at - self._max_gap_s)
        self._ticked_at_and_lost = now, lost + asleep
        return asleep
