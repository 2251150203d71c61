import pytest

from twostep.core.errors import ChecksumMismatch, NodeDraining, NodeReplaced, NodeUnreachable, ServingError
from twostep.router.requests.retry_budget import RetryBudget
from twostep.tests.handoff.clock import ManualClock

ERROR = ChecksumMismatch("block 3")


def spent(budget: RetryBudget) -> int:
    """Take what there is; returns how many retries that were."""
    return next(number for number in range(10**6) if not budget.take(ERROR))


def test_retries_are_a_share_of_the_requests_once_the_reserve_is_spent() -> None:
    budget = RetryBudget(0.2, 10, ManualClock())
    assert spent(budget) == 10
    for _ in range(30):
        budget.note_request()
    assert spent(budget) == 6


def test_no_more_than_the_reserve_is_saved_up() -> None:
    budget = RetryBudget(0.2, 10, ManualClock())
    for _ in range(1000):
        budget.note_request()
    assert spent(budget) == 10


def test_the_reserve_comes_in_again_within_a_minute() -> None:
    clock = ManualClock()
    budget = RetryBudget(0.2, 10, clock)
    assert spent(budget) == 10
    clock.advance(30.0)
    assert spent(budget) == 5
    clock.advance(600.0)
    assert spent(budget) == 10


@pytest.mark.parametrize("error", [NodeUnreachable("gone"), NodeReplaced("another life"), NodeDraining("told to stop")])
def test_a_node_that_is_lost_or_drains_spends_nothing(error: ServingError) -> None:
    budget = RetryBudget(0.0, 1, ManualClock())
    assert all(budget.take(error) for _ in range(1000))
    assert spent(budget) == 1
