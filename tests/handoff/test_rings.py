"""A range that passes through fewer landing slots than it has blocks: each has to be credited before it is written again."""

import pytest

from twostep.core.errors import DeadlineExceeded, NodeUnreachable, ServingError, TransferTimeout
from twostep.node.handoff_messages import Landed
from twostep.tests.handoff.pair import running_pair
from twostep.tests.handoff.requests import MODEL, PREFILL, RING, TIMERS, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("silence", [DeadlineExceeded("d0 did not answer in time"), NodeUnreachable("d0: UNAVAILABLE")])
async def test_a_decode_node_that_says_nothing_to_what_has_landed_costs_an_attempt_and_not_the_request(
    silence: ServingError, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unanswered(landed: Landed, *, give_up_s: float) -> None:
        del landed, give_up_s
        raise silence

    one = request("a", 200)
    async with running_pair(MODEL, PREFILL, RING) as pair:
        with monkeypatch.context() as broken:
            broken.setattr(pair.prefill.parts.destinations, "landed", unanswered)
            with pytest.raises(TransferTimeout, match=silence.message) as told:
                await pair.router.prefill(one, (await pair.router.grant(one)).ticket)
        assert told.value.retry_elsewhere
        await pair.router.prefill(one, (await pair.router.grant(one, attempt=2)).ticket)
        answer = pair.router.answer("a", 2)
        await answer.over.wait()
        assert tuple(answer.tokens) == Solo(MODEL).answer(one)[0]
        pair.tick(advance_s=TIMERS.retry_s)
        await pair.settle()
        pair.require_clean()
