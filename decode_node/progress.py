"""Decides whether a prefill node is getting on with a leg: being alive is not enough."""

from dataclasses import dataclass

from twostep.node.config import Timers


@dataclass(frozen=True, slots=True)
class Sign:
    """What P says about one leg. `engine_step` counts P's engine steps, whoever they are for."""

    phase: str
    queue_position: int
    engine_step: int
    bytes_sent: int = 0


class ProgressWatch:
    """When a leg last moved and when P was last heard, by this node's own clock.

    It may stand still for `progress_s`; once P has said a word of it, no more than `silence_s` may pass until the next.
    """

    def __init__(self, now: float) -> None:
        self._moved_at = self._heard_at = now
        self._last: Sign | None = None

    def hear(self, sign: Sign, now: float) -> None:
        if is_progress(self._last, sign):
            self._moved_at = now
        self._heard_at, self._last = now, sign

    def moved(self, now: float) -> None:
        """Record a proof of progress other than P's word: something landed."""
        self._moved_at = self._heard_at = now

    def due_at(self, timers: Timers) -> float:
        """Return when the leg is to be given up, unless it moves or P is heard before."""
        still_until = self._moved_at + timers.progress_s
        return min(still_until, self._heard_at + timers.silence_s) if self._last else still_until

    def complaint(self, now: float, timers: Timers) -> str:
        """Return what is wrong with the leg now, or nothing."""
        if now >= self._moved_at + timers.progress_s:
            return f"made no progress for {timers.progress_s:g} s"
        return f"was silent for {timers.silence_s:g} s" if now >= self.due_at(timers) else ""


def is_progress(before: Sign | None, now: Sign) -> bool:
    """Return whether the leg moved: queueing counts, computing when the engine has stepped on, sending when bytes have gone."""
    if before is None or now.phase == "queued" or now.phase != before.phase:
        return True
    has_stepped = now.phase == "computing" and now.engine_step != before.engine_step
    return has_stepped or now.bytes_sent != before.bytes_sent
