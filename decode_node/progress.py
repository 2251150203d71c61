"""Decides whether a prefill node is getting on with a leg: being alive is not enough."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sign:
    """What P says about one leg. `engine_step` counts P's engine steps, whoever they are for."""

    phase: str
    queue_position: int
    engine_step: int
    bytes_sent: int = 0


class ProgressWatch:
    """When a leg last moved, by this node's own clock."""

    def __init__(self, now: float) -> None:
        self._moved_at = now
        self._last: Sign | None = None

    def hear(self, sign: Sign, now: float) -> None:
        if is_progress(self._last, sign):
            self._moved_at = now
        self._last = sign

    def moved(self, now: float) -> None:
        """Record a proof of progress other than P's word: something landed."""
        self._moved_at = now

    def idle_s(self, now: float) -> float:
        return now - self._moved_at


def is_progress(before: Sign | None, now: Sign) -> bool:
    """Return whether the leg moved: queueing counts, computing when the engine has stepped on, sending when bytes have gone."""
    if before is None or now.phase == "queued" or now.phase != before.phase:
        return True
    has_stepped = now.phase == "computing" and now.engine_step != before.engine_step
    return has_stepped or now.bytes_sent != before.bytes_sent
