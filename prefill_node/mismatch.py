"""Finds out where KV was spoiled that a decode node's copy did not match: here, or on the way there."""

import asyncio

from twostep.prefill_node.leg import PrefillLeg
from twostep.prefill_node.pair_health import Cause
from twostep.prefill_node.parts import Parts


async def investigate(parts: Parts, leg: PrefillLeg) -> None:
    """Digest the leg's blocks, which it still holds, again. Spoiled ones leave the prefix cache, with what follows them.

    Sound ones are held against the pair.
    """
    missing, reservation = leg.ticket.missing, leg.reservation
    assert reservation is not None
    spoiled = await asyncio.to_thread(parts.digests.spoiled, missing, reservation.table)
    first = missing.start // parts.engine.runner.kv.layout.block_tokens
    parts.metrics.digest_mismatches.inc(len(spoiled))
    parts.engine.purge([reservation.table[first + block] for block in spoiled])
    destination = leg.id.destination
    parts.metrics.pair_mismatches.labels(destination.id, Cause.SOURCE if spoiled else Cause.PATH).inc()
    if not spoiled:
        parts.peers.note_mismatch(destination)
