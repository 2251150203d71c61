"""How fast something that is lent comes back, measured, and how long one who waits for it will wait at that pace."""

from dataclasses import dataclass

DECAY = 0.9
"""What each return leaves of the weight of those before it."""


@dataclass(frozen=True, slots=True)
class Supply:
    """One thing that requests wait for, such as blocks: how much of it is free and held now.

    `mean_hold_s` is how long a unit of it was held lately; None while nothing has come back yet.
    """

    free: float
    held: float
    mean_hold_s: float | None

    def wait_s(self, wanted: float) -> float | None:
        """Return in how many seconds `wanted` will be free; None when that is not known yet.

        What is held comes back at `held / mean_hold_s` a second (Little's law).
        """
        lacking = wanted - self.free
        if lacking <= 0:
            return 0.0
        if self.mean_hold_s is None or not self.held:
            return None
        return lacking * self.mean_hold_s / self.held


class HoldMeter:
    """The mean time for which a unit was held; the latest returns count most."""

    def __init__(self) -> None:
        self._amount = 0.0
        self._amount_s = 0.0

    def record(self, amount: float, held_s: float) -> None:
        """`amount` units have come back that were held for `held_s`."""
        self._amount = self._amount * DECAY + amount
        self._amount_s = self._amount_s * DECAY + amount * held_s

    @property
    def mean_s(self) -> float | None:
        return self._amount_s / self._amount if self._amount else None
