"""A node's trace of a handoff: its steps, and the phases of the request on both nodes."""

import pytest

from twostep.proto import node_pb2 as pb
from twostep.tests.handoff.pair import running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, request

pytestmark = pytest.mark.processes


async def test_a_handoff_is_traced_on_both_nodes_from_its_arrival_to_its_end() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await pair.router.serve(request("a", 100, max_tokens=4))
        await pair.settle()
        of_p = await pair.router.prefill_node.node.Trace(pb.TraceRequest())
        of_d = await pair.router.decode_node.node.Trace(pb.TraceRequest())
    assert [span.phase for span in of_p.spans] == ["queued", "computing", "sending", "awaiting_answer"]
    assert [span.phase for span in of_d.spans] == ["queued", "reserved", "filling", "verifying", "complete", "attached"]
    assert {(span.request, span.attempt) for span in (*of_p.spans, *of_d.spans)} == {("a", 1)}
    assert sum(step.prompt_tokens for step in of_p.steps) == 100
    assert [step.decode_tokens for step in of_d.steps] == [1, 1, 1]
    assert of_p.node.id == "p"


async def test_what_still_runs_is_traced_as_going_on() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        await pair.router.grant(request("a", 100))
        pair.tick(advance_s=2.0)
        (queued, reserved) = (await pair.router.decode_node.node.Trace(pb.TraceRequest())).spans
        assert (queued.phase, queued.duration_s, queued.age_s) == ("queued", 0.0, 2.0)
        assert (reserved.phase, reserved.HasField("duration_s"), reserved.age_s) == ("reserved", False, 2.0)
        (alone,) = (await pair.router.decode_node.node.Trace(pb.TraceRequest(within_s=1.0))).spans
        assert alone == reserved
