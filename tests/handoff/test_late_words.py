"""Messages that come twice, late, or about nothing: counted, answered from the record, without effect."""

import asyncio
from dataclasses import replace

import pytest

from twostep.core.errors import ServingError, TransferFailed
from twostep.core.ids import Attempt, Generation, RequestId
from twostep.core.request import TokenEvent
from twostep.engine.batch import Batch
from twostep.engine.engine import StepResult
from twostep.engine.step_record import StepRecord
from twostep.node.handoff_messages import Abort, AbortState, Answer, Credit, Done, Failed, LegProgress, Outcome
from twostep.proto.wire import ticket_from_pb
from twostep.tests.handoff.computing import computing
from twostep.tests.handoff.gate import PATIENCE_S, Gate
from twostep.tests.handoff.pair import Pair, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes

A = RequestId("a")
NOTHING_DONE = StepRecord(1, 0.0, 0.0, None, 0, 0, 0, 0, 0, 0)


class Eavesdropper:
    """Keeps what the prefill node says at last, on its way to the decode node."""

    def __init__(self, pair: Pair) -> None:
        self.said: list[Done] = []
        self._calls = pair.prefill.parts.destinations
        self._done = self._calls.done
        self._calls.done = self.done  # type: ignore[method-assign]

    async def done(self, done: Done, *, give_up_s: float) -> Answer:
        self.said.append(done)
        return await self._done(done, give_up_s=give_up_s)


def num_noops(pair: Pair, kind: str) -> int:
    (family,) = (one for one in pair.decode.parts.metrics.registry.collect() if one.name == "twostep_noop_messages")
    counts = [sample.value for sample in family.samples if sample.name.endswith("_total") and sample.labels["kind"] == kind]
    return int(sum(counts))


async def test_a_second_done_gets_the_first_ones_answer_and_attaches_nothing() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        ear = Eavesdropper(pair)
        served = await pair.router.serve(request("a", 100))
        again = await pair.decode.legs.done(ear.said[0])
        assert again == Answer(Outcome.ATTACHED)
        assert num_noops(pair, "done") == 1
        assert served.tokens == Solo(MODEL).answer(request("a", 100))[0]
        await pair.settle()
        pair.require_clean()


async def test_two_dones_at_once_are_verified_once() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        ear = Eavesdropper(pair)
        real = ear._done

        async def twice(done: Done, *, give_up_s: float) -> Answer:
            answers = await asyncio.gather(real(done, give_up_s=give_up_s), real(done, give_up_s=give_up_s))
            assert answers[0] == answers[1] == Answer(Outcome.ATTACHED)
            return answers[0]

        ear._done = twice
        served = await pair.router.serve(request("a", 100))
        assert served.tokens == Solo(MODEL).answer(request("a", 100))[0]
        assert num_noops(pair, "done") == 1
        await pair.settle()
        pair.require_clean()


async def test_a_done_after_the_end_is_told_that_the_leg_has_ended() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        granted = await pair.router.grant(request("a", 100))
        ticket = ticket_from_pb(granted.ticket)
        await pair.router.cancel(A)
        late = Done(ticket.leg, ticket.extent.generation, first_token=1)
        assert (await pair.decode.legs.done(late)).outcome is Outcome.ENDED
        await pair.settle()
        assert pair.router.answer("a").tokens == []


async def test_a_done_of_an_earlier_generation_is_unknown() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        granted = await pair.router.grant(request("a", 100))
        ticket = ticket_from_pb(granted.ticket)
        late = Done(ticket.leg, Generation(ticket.extent.generation - 1), first_token=1)
        assert (await pair.decode.legs.done(late)).outcome is Outcome.UNKNOWN_LEG
        await pair.router.prefill(request("a", 100), granted.ticket)
        await pair.settle()
        pair.require_clean()


async def test_words_about_a_leg_that_never_was_are_unknown() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        granted = await pair.router.grant(request("a", 100))
        ticket = ticket_from_pb(granted.ticket)
        stranger = replace(ticket.leg, attempt=Attempt(7))
        failed = Failed(stranger, ticket.extent.generation, TransferFailed("no"), drained=True)
        assert (await pair.decode.legs.failed(failed)).outcome is Outcome.UNKNOWN_LEG
        told = [LegProgress(stranger, "computing"), LegProgress(ticket.leg, "computing")]
        assert pair.decode.legs.progress(stranger.source, 1, told) == (stranger,)
        await pair.router.cancel(A)


async def test_an_abort_of_a_leg_that_never_was_is_unknown_and_the_next_one_late() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        granted = await pair.router.grant(request("a", 100))
        ticket = ticket_from_pb(granted.ticket)
        abort = Abort(ticket.leg, ticket.extent.generation, Answer(Outcome.ENDED))
        page = pair.prefill.parts.metrics.registry
        for why in ("unknown", "late"):
            assert await pair.prefill.legs.abort(abort) is AbortState.DRAINED
            assert page.get_sample_value("twostep_noop_messages_total", {"kind": "abort", "why": why}) == 1
        await pair.router.cancel(A)


async def test_a_failure_told_twice_has_one_outcome() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        granted = await pair.router.grant(request("a", 100))
        ticket = ticket_from_pb(granted.ticket)
        failed = Failed(ticket.leg, ticket.extent.generation, ServingError("out of luck"), drained=True)
        first = await pair.decode.legs.failed(failed)
        assert await pair.decode.legs.failed(failed) == first
        await pair.router.answer("a").over.wait()
        assert str(pair.router.answer("a").error) == "out of luck"
        assert num_noops(pair, "failed") == 1
        await pair.settle()
        pair.require_clean()


async def test_the_same_prefill_asked_twice_is_computed_once() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        granted = await pair.router.grant(request("a", 100))
        both = await asyncio.gather(*(pair.router.prefill(request("a", 100), granted.ticket) for _ in range(2)))
        assert both[0] == both[1]
        page = pair.prefill.parts.metrics.registry
        assert page.get_sample_value("twostep_noop_messages_total", {"kind": "prefill", "why": "repeated"}) == 1
        await pair.router.answer("a").over.wait()
        assert pair.prefill.parts.metrics.registry.get_sample_value("twostep_prompt_tokens_computed_total") == 100
        await pair.settle()
        pair.require_clean()


async def test_a_credit_outside_the_leg_is_refused_and_the_leg_goes_on() -> None:
    async with computing() as (pair, gate, prefilling):
        (leg,) = pair.prefill.legs
        with pytest.raises(TransferFailed, match="outside the leg"):
            pair.prefill.legs.credit(Credit(leg.id, leg.ticket.extent.generation, range(MODEL.num_layers + 1), 1))
        gate.open()
        await prefilling
        await pair.router.answer("a").over.wait()
        assert tuple(pair.router.answer("a").tokens) == Solo(MODEL).answer(request("a", 100))[0]


@pytest.mark.parametrize(("attempt", "index"), [(1, 7), (1, 0), (2, 0)])
async def test_a_token_that_is_not_the_next_of_the_current_attempt_is_not_shown(attempt: int, index: int) -> None:
    gate = Gate()
    async with running_pair(MODEL, PREFILL, DECODE, decode_gate=gate) as pair:
        gate.close()
        granted = await pair.router.grant(request("a", 100))
        await pair.router.prefill(request("a", 100), granted.ticket)
        stray = TokenEvent(A, attempt, index, 3)
        pair.decode.take_step(StepResult(Batch(()), (stray,), (), (), NOTHING_DONE))
        gate.open()
        await pair.router.answer("a").over.wait()
        assert tuple(pair.router.answer("a").tokens) == Solo(MODEL).answer(request("a", 100))[0]
        assert num_noops(pair, "token") == 1
        await pair.settle()
        pair.require_clean()


async def test_the_tokens_of_a_whole_step_travel_in_one_message() -> None:
    gate = Gate()
    async with running_pair(MODEL, PREFILL, DECODE, decode_gate=gate) as pair:
        gate.close()
        requests = [request(name, 60, max_tokens=2) for name in "abc"]
        for one in requests:
            granted = await pair.router.grant(one)
            await pair.router.prefill(one, granted.ticket)
        await asyncio.to_thread(gate.reached.wait)
        gate.open()
        await asyncio.gather(*(pair.router.answer(one.id).over.wait() for one in requests))
        sizes = [len(batch.tokens) for batch in pair.router.batches]
        assert sum(sizes) == 6
        assert sizes[-1] >= 2
        await pair.settle()


@pytest.mark.parametrize("closed", ["prefill", "decode"])
async def test_control_is_answered_while_a_step_runs(closed: str) -> None:
    gates = {"prefill": Gate(), "decode": Gate()}
    async with running_pair(MODEL, PREFILL, DECODE, prefill_gate=gates["prefill"], decode_gate=gates["decode"]) as pair:
        gates[closed].close()
        granted = await pair.router.grant(request("a", 100))
        prefill = asyncio.ensure_future(pair.router.prefill(request("a", 100), granted.ticket))
        await asyncio.to_thread(gates[closed].reached.wait)
        async with asyncio.timeout(PATIENCE_S):
            await pair.router.status()
            await pair.router.heartbeat(1, A)
            await pair.router.grant(request("b", 100))
            await pair.router.cancel(RequestId("b"))
        gates[closed].open()
        await prefill
        await pair.router.answer("a").over.wait()
        await pair.settle()
