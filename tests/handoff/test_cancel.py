"""A request can be ended in every phase, by its client, its deadline or its router's silence: at once, on both nodes."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from twostep.core.errors import DeadlineExceeded, ServingError
from twostep.tests.handoff import phases
from twostep.tests.handoff.gate import PATIENCE_S
from twostep.tests.handoff.pair import Pair
from twostep.tests.handoff.phases import TIME_S, A, B, Held

pytestmark = pytest.mark.processes

Phase = Callable[[], AbstractAsyncContextManager[Held]]
Cause = Callable[[Pair], Awaitable[None]]


async def a_cancel(pair: Pair) -> None:
    await pair.router.cancel(A)


async def its_deadline(pair: Pair) -> None:
    pair.tick(advance_s=TIME_S + 1)


async def its_routers_silence(pair: Pair) -> None:
    await pair.router.heartbeat(1, A, B, lease_s=3.0)
    pair.tick(advance_s=4.0)


PHASES: list[Phase] = [
    phases.queued_on_d,
    phases.holding_a_ticket,
    phases.queued_on_p,
    phases.computing,
    phases.sending,
    phases.being_verified,
    phases.decoding,
    phases.preempted,
    phases.computing_on_a_draining_node,
    phases.decoding_on_a_draining_node,
]
CAUSES: list[Cause] = [a_cancel, its_deadline, its_routers_silence]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
async def test_a_request_ends_in_any_phase_at_once_and_leaves_nothing(phase: Phase, cause: Cause) -> None:
    async with phase() as held:
        pair = held.pair
        was_on_p = bool(pair.prefill.legs.of(A))
        await cause(pair)
        # Whatever holds the request still does: both nodes give it up all the same.
        async with asyncio.timeout(PATIENCE_S):
            while pair.decode.parts.handoffs.find(A) or not all(leg.is_stopped for leg in pair.prefill.legs.of(A)):
                await pair.router.status()
        held.let_go()
        if held.call:
            with pytest.raises(ServingError):
                await held.call
        await require_last_word(held, cause)
        await pair.router.cancel(B)
        await pair.settle()
        pair.require_clean()
        assert pair.decode.parts.landing.unproven_reuse == 0
        assert num_frees(pair, "decode") >= 1
        assert num_frees(pair, "prefill") >= was_on_p


async def require_last_word(held: Held, cause: Cause) -> None:
    """Assert that the router was told once, and why, unless it fell silent or its reservation was refused instead."""
    if cause is its_routers_silence or not held.is_granted:
        return
    answer = held.pair.router.answer(A)
    await answer.over.wait()
    if cause is its_deadline:
        assert isinstance(answer.error, DeadlineExceeded)
    else:
        assert answer.finish_reason == "cancelled"


def num_frees(pair: Pair, side: str) -> float:
    registry = getattr(pair, side).parts.metrics.registry
    return registry.get_sample_value("twostep_cancel_to_free_seconds_count") or 0.0
