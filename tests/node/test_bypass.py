"""Who may pass whom, as a table."""

import pytest

from twostep.node.bypass import Passed, Patience, may_pass

PATIENCE = Patience(max_passes=2, max_wait_s=5.0)


@pytest.mark.parametrize(
    ("blocked", "may"),
    [
        ([], True),
        ([Passed(0, 0.0)], True),
        ([Passed(1, 4.9)], True),
        ([Passed(2, 0.0)], False),
        ([Passed(3, 0.0)], False),
        ([Passed(0, 5.0)], False),
        ([Passed(0, 6.0)], False),
        ([Passed(0, 0.0), Passed(1, 1.0)], True),
        ([Passed(0, 0.0), Passed(2, 1.0)], False),
        ([Passed(2, 1.0), Passed(0, 0.0)], False),
    ],
)
def test_a_later_one_passes_while_everybody_before_it_has_patience(blocked: list[Passed], may: bool) -> None:
    assert may_pass(blocked, PATIENCE) is may


def test_without_passes_the_order_is_strict() -> None:
    assert not may_pass([Passed(0, 0.0)], Patience(max_passes=0, max_wait_s=5.0))
