import pytest

from twostep.core.errors import Conflict, DeadlineExceeded, NodeUnavailable, ServingError
from twostep.node.calls import repeat_until_answered


class Peer:
    """Answers with the given errors in turn, then well."""

    def __init__(self, *errors: ServingError) -> None:
        self.errors = list(errors)
        self.num_calls = 0

    async def __call__(self) -> str:
        self.num_calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


async def test_a_call_is_repeated_while_nobody_answers() -> None:
    peer = Peer(NodeUnavailable("down"), DeadlineExceeded("slow"))
    assert await repeat_until_answered(peer, give_up_s=10.0) == "answer"
    assert peer.num_calls == 3


async def test_an_error_that_the_other_side_raises_is_an_answer() -> None:
    peer = Peer(Conflict("no"), Conflict("no"))
    with pytest.raises(Conflict):
        await repeat_until_answered(peer, give_up_s=10.0)
    assert peer.num_calls == 1


async def test_the_last_failure_is_raised_when_the_time_is_over() -> None:
    peer = Peer(NodeUnavailable("down"), NodeUnavailable("still down"))
    with pytest.raises(NodeUnavailable, match=r"^down"):
        await repeat_until_answered(peer, give_up_s=0.0)
