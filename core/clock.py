"""Time as a parameter: production passes `time.monotonic`, tests pass a clock they move by hand."""

from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds since some fixed moment; never goes back."""
