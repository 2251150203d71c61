"""When those who wait will have what they need."""

import pytest

from twostep.core.turnover import Supply
from twostep.decode_node.wait_estimate import Demand, Supplies, estimate_s

PLENTY = Supply(free=1e9, held=1.0, mean_hold_s=1.0)
SHORT = Supply(free=2, held=10, mean_hold_s=5.0)
UNKNOWN = Supply(free=2, held=10, mean_hold_s=None)
ONE = Demand(blocks=4, places=1, landing_bytes=4)


@pytest.mark.parametrize(
    ("supplies", "wait_s"),
    [
        (Supplies(PLENTY, PLENTY, PLENTY, PLENTY), 0.0),
        (Supplies(SHORT, PLENTY, PLENTY, PLENTY), 3.0),
        (Supplies(PLENTY, PLENTY, SHORT, PLENTY), 3.0),
        (Supplies(PLENTY, PLENTY, PLENTY, SHORT), 3.0),
        (Supplies(PLENTY, Supply(0, 4, 8.0), SHORT, PLENTY), 4.0),
        (Supplies(UNKNOWN, PLENTY, PLENTY, PLENTY), None),
        (Supplies(UNKNOWN, SHORT, PLENTY, PLENTY), None),
    ],
)
def test_the_scarcest_thing_decides(supplies: Supplies, wait_s: float | None) -> None:
    assert estimate_s([ONE, ONE], supplies) == wait_s


def test_who_has_its_blocks_already_waits_for_landing_space_alone() -> None:
    supplies = Supplies(UNKNOWN, SHORT, SHORT, SHORT)
    assert estimate_s([Demand(blocks=0, places=0, landing_bytes=4)], supplies) == 1.0
