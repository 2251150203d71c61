"""Lists who holds which KV blocks of a prefill node, and which legs have writes in flight from them."""

from dataclasses import replace

from twostep.engine.ledger import LedgerEntry as EngineEntry
from twostep.node.control import block_ledger
from twostep.node.description import LedgerEntry, NodeLedger
from twostep.prefill_node.leg import PrefillLeg
from twostep.prefill_node.legs import Legs
from twostep.prefill_node.parts import Parts


def prefill_ledger(parts: Parts, legs: Legs) -> NodeLedger:
    """Return the ledger of this moment. Legs that wait for blocks are listed with none."""
    blocks = block_ledger(parts.node, parts.engine.ledger(legs.owners), lambda held: _held(held, legs))
    waiting = tuple(_waiting(leg, parts.clock()) for leg in legs.waiting)
    return replace(blocks, entries=blocks.entries + waiting)


def _held(held: EngineEntry, legs: Legs) -> LedgerEntry:
    """A request's phase is that of its leg too; its blocks are read from for as long as writes are in flight."""
    leg = next((leg for leg in legs.of(held.owner) if leg.reservation), None)
    if leg is None:
        return LedgerEntry(held.owner, held.phase, held.age_s, held.blocks)
    return LedgerEntry(
        owner=held.owner,
        phase=f"{held.phase}, leg {leg.phase}",
        age_s=held.age_s,
        blocks=held.blocks,
        generation=leg.ticket.extent.generation,
        attempt=leg.id.attempt,
        destination=str(leg.id.destination),
        writes_in_flight=leg.outgoing.num_in_flight if leg.outgoing else 0,
    )


def _waiting(leg: PrefillLeg, now: float) -> LedgerEntry:
    phase = f"queued at {leg.position}, lacks {leg.lacking}" if leg.lacking else f"queued at {leg.position}"
    destination = str(leg.id.destination)
    return LedgerEntry(leg.request_id, phase, now - leg.arrived_at, attempt=leg.id.attempt, destination=destination)
