"""What real nodes tell is what the autoscaler reads."""

import pytest
from prometheus_client import generate_latest

from twostep.autoscaler.metrics_text import read_node
from twostep.autoscaler.seen import NodeCounters
from twostep.node.metrics import NodeMetrics
from twostep.tests.handoff.pair import running_pair
from twostep.tests.handoff.phases import reserve
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL

pytestmark = pytest.mark.processes


def told(metrics: NodeMetrics) -> NodeCounters:
    return read_node(generate_latest(metrics.registry).decode())


async def test_real_nodes_tell_what_is_read_of_them() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        idle = [told(node.parts.metrics) for node in (pair.prefill, pair.decode)]
        for one in idle:
            assert one.total_blocks == one.free_blocks > 0
            assert (one.num_running, one.num_waiting, one.queued_tokens) == (0, 0, 0)
        await reserve(pair)
        reserved = told(pair.decode.parts.metrics)
        assert reserved.num_running == 1
        assert reserved.free_blocks < reserved.total_blocks
