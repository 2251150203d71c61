"""Sender and receiver together: whatever the chunking, ring or notifications, the copy equals the source or is refused."""

import numpy as np

from twostep.core.ids import BlockId
from twostep.core.ticket import TokenRange
from twostep.tests.kv_transfer.host_memory import compute
from twostep.tests.kv_transfer.nodes import connected_pair, local_transports


def test_a_prompt_pushed_by_layer_groups_and_chunks_arrives_exactly() -> None:
    pair = connected_pair(local_transports())
    source_table = [BlockId(b) for b in (5, 9, 2, 11)]
    target_table = [BlockId(b) for b in (7, 3, 30, 12)]
    missing = TokenRange(4, 14)
    ticket = pair.grant(missing, target_table)
    leg = pair.source.sender.open(ticket, source_table)
    for tokens, blocks in ((TokenRange(4, 8), range(1)), (TokenRange(8, 14), range(1, 3))):
        for layers in (range(2), range(2, 4)):
            compute(pair.source.memory, pair.source.digests, layers, tokens, source_table, seed=1)
            leg.push(layers, blocks)
            pair.run(turns=2)
    report = leg.finish()
    pair.run(report)
    verdict = pair.target.receiver.finish(ticket.leg, pair.source.digests.of(range(4), missing, source_table))
    pair.run(verdict)
    assert verdict.result().ok
    assert report.result().num_writes == 4
    assert report.result().bytes_sent == 12 * pair.source.memory.layout.layer_block_bytes
    for layer in range(4):
        here = pair.target.memory.read(layer, missing, target_table)
        assert np.array_equal(here, pair.source.memory.read(layer, missing, source_table))
