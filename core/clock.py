"""Time as a parameter: production passes `time.monotonic`, tests pass a clock they move by hand."""

from collections.abc import Callable, Iterable

Clock = Callable[[], float]
"""Returns seconds since some fixed moment; never goes back."""


def seconds_until(moments: Iterable[float], now: float, *, at_most: float) -> float:
    """Return how long it is until the first of `moments`; 0 when one is past, `at_most` when none is near."""
    return max(0.0, min((at_most, *(at - now for at in moments))))
