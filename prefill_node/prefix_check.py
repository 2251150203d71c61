"""Looks again at cached KV that a leg computes from and does not send: all that is sent is looked at by the decode node."""

import asyncio
from zlib import crc32

from twostep.core.errors import TransferFailed
from twostep.core.ids import RequestId
from twostep.core.ticket import TokenRange
from twostep.engine.engine import Reservation
from twostep.prefill_node.leg import PrefillLeg
from twostep.prefill_node.parts import Parts


async def check_prefix(parts: Parts, leg: PrefillLeg, reservation: Reservation) -> None:
    """Digest a part of the leg's unsent prefix; what is spoiled leaves the prefix cache, and the leg ends."""
    size = parts.engine.runner.kv.layout.block_tokens
    unsent = min(leg.ticket.missing.start, reservation.cached_tokens) // size
    computed = -(-leg.ticket.missing.end // size) - reservation.cached_tokens // size
    blocks = blocks_to_check(unsent, computed, leg.request_id)
    if not blocks:
        return
    tokens = TokenRange(blocks.start * size, blocks.stop * size)
    spoiled = await asyncio.to_thread(parts.digests.spoiled, tokens, reservation.table)
    parts.metrics.prefix_blocks_checked.inc(len(blocks))
    if spoiled:
        parts.metrics.digest_mismatches.inc(len(spoiled))
        parts.engine.purge([reservation.table[blocks.start + block] for block in spoiled])
        leg.stop(TransferFailed(f"request {leg.request_id}: {len(spoiled)} blocks of its cached prefix had changed"))


def blocks_to_check(num_unsent: int, num_computed: int, request: RequestId) -> range:
    """Return which of a prefix's first `num_unsent` blocks to look at: at most as many as are computed.

    So the looking never takes longer than digesting what is computed does. Each request looks elsewhere, so that a prefix that
    many share is looked at as a whole by them together.
    """
    num_checked = min(num_unsent, num_computed)
    start = crc32(request.encode()) % (num_unsent - num_checked + 1)
    return range(start, start + num_checked)
