"""Measures two sides in turn, A B A B: what slows the machine down for a while slows both."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from twostep.benchmarks.harness.rows import Measured

Side = Callable[[], Awaitable[float]]
"""Measures once and returns the figure."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: `rounds` of each side; `is_quick` asks for smaller sizes, too."""

    rounds: int = 5
    is_quick: bool = False

    def pick(self, full: int, quick: int) -> int:
        return quick if self.is_quick else full


QUICK = Effort(rounds=2, is_quick=True)


async def alternate(ours: Side, peer: Side, rounds: int) -> Measured:
    """Run both sides `rounds` times in turn, after one round that warms up and does not count."""
    await ours()
    await peer()
    pairs = [(await ours(), await peer()) for _ in range(rounds)]
    return Measured(tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))


async def repeat(ours: Side, rounds: int) -> Measured:
    """Run the only side there is, after one round that warms up."""
    await ours()
    return Measured(tuple([await ours() for _ in range(rounds)]))


def percentile(values: list[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of all do not exceed. Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    rank = -(-len(values) * percent // 100)
    return sorted(values)[max(0, int(rank) - 1)]
