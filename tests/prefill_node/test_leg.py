import asyncio
from typing import Any

import pytest

from twostep.core.errors import Cancelled, NodeUnavailable
from twostep.core.fingerprint import Fingerprint
from twostep.core.ids import Attempt, BlockHash, Generation, Incarnation, NodeId, NodeRef, RequestId, RouterId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.core.ticket import LandingExtent, Leg, Ticket, TokenRange
from twostep.engine.sequence import PrefixChain, Prepared
from twostep.node.trace import Tracer
from twostep.prefill_node.leg import PrefillLeg, PrefillOrder
from twostep.tests.handoff.clock import ManualClock

P, D = (NodeRef(NodeId(name), Incarnation(1)) for name in "pd")


def new_leg() -> PrefillLeg:
    request = Request(RequestId("a"), (1, 2), SamplingParams(seed=0), StopRules(max_tokens=1))
    extent = LandingExtent(0, 64, 1, Generation(1))
    ticket = Ticket(Leg(request.id, Attempt(1), P, D), TokenRange(0, 2), b"", extent, 1, 0, 1, b"", remaining_s=5.0)
    order = PrefillOrder(RouterId("r"), request, ticket, Fingerprint.from_dict({}))
    prepared = Prepared(request, PrefixChain(BlockHash(b"root"), 32, request.tokens), growth_tokens=0)
    clock = ManualClock()
    return PrefillLeg(order, prepared, Tracer(clock), clock)


async def forever() -> Any:
    await asyncio.get_running_loop().create_future()


async def test_work_that_is_done_in_time_returns_its_result() -> None:
    leg = new_leg()
    assert await leg.unless_stopped(asyncio.sleep(0, "result")) == "result"


async def test_a_stopped_leg_raises_its_reason_at_the_next_wait_and_cancels_the_work() -> None:
    leg = new_leg()
    work = asyncio.ensure_future(forever())
    waiting = asyncio.ensure_future(leg.unless_stopped(work))
    await asyncio.sleep(0)
    leg.stop(Cancelled("the client has gone"))
    with pytest.raises(Cancelled, match="the client has gone"):
        await waiting
    assert work.cancelled()


async def test_a_leg_that_is_stopped_begins_nothing_more() -> None:
    """Else a word that was due next, such as Done, could be on its way before it is cancelled."""
    leg, begun = new_leg(), list[str]()

    async def work() -> None:
        begun.append("begun")

    leg.stop(Cancelled("the client has gone"))
    with pytest.raises(Cancelled, match="the client has gone"):
        await leg.unless_stopped(work())
    await asyncio.sleep(0.01)
    assert begun == []


async def test_the_first_reason_stands() -> None:
    leg = new_leg()
    leg.stop(NodeUnavailable("first"))
    leg.stop(Cancelled("second"))
    with pytest.raises(NodeUnavailable, match="first"):
        await leg.unless_stopped(forever())


async def test_a_stop_on_the_decode_nodes_word_need_not_be_told_to_it() -> None:
    leg = new_leg()
    leg.stop(NodeUnavailable("first"))
    assert leg.must_tell
    leg.stop(Cancelled("D knows"), tell=False)
    assert not leg.must_tell


async def test_what_the_work_raises_comes_through() -> None:
    async def fails() -> None:
        raise NodeUnavailable("no")

    with pytest.raises(NodeUnavailable, match="no"):
        await new_leg().unless_stopped(fails())
