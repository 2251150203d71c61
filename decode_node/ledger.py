"""Lists who holds which KV blocks and landing extents of a decode node."""

from dataclasses import replace

from twostep.core.ids import NodeRef
from twostep.decode_node.handoff import Handoff
from twostep.decode_node.parts import Parts
from twostep.engine.ledger import LedgerEntry as EngineEntry
from twostep.kv_transfer.handoff_state import HandoffState
from twostep.kv_transfer.landing import LandingPool, Loan
from twostep.node.control import block_ledger
from twostep.node.description import LedgerEntry, NodeLedger


def decode_ledger(parts: Parts) -> NodeLedger:
    """Return the ledger of this moment: blocks by request, then who waits for some, then landing extents."""
    now, landing = parts.clock(), parts.landing.census()
    blocks = block_ledger(parts.node, parts.engine.ledger(parts.handoffs.owners), lambda held: _held(held, parts))
    queued = tuple(_queued(handoff, now) for handoff in parts.handoffs if handoff.state is HandoffState.QUEUED)
    extents = tuple(_extent(loan, parts.landing, now) for loan in parts.landing.ledger())
    return replace(
        blocks,
        landing_bytes=landing.total_bytes,
        landing_free_bytes=landing.free_bytes,
        entries=blocks.entries + queued + extents,
    )


def _held(held: EngineEntry, parts: Parts) -> LedgerEntry:
    """A request's phase is that of its handoff too."""
    handoff = parts.handoffs.find(held.owner)
    phase = f"{held.phase}, handoff {handoff.state}" if handoff else held.phase
    source = str(handoff.leg.id.source) if handoff and handoff.leg else ""
    attempt = handoff.order.attempt if handoff else 0
    return LedgerEntry(held.owner, phase, held.age_s, held.blocks, attempt=attempt, source=source)


def _queued(handoff: Handoff, now: float) -> LedgerEntry:
    phase = f"queued at {handoff.position}, lacks {handoff.lacking}" if handoff.lacking else f"queued at {handoff.position}"
    return LedgerEntry(handoff.id, phase, now - handoff.meter.arrived_at, attempt=handoff.order.attempt)


def _extent(loan: Loan, landing: LandingPool, now: float) -> LedgerEntry:
    owner, extent = loan.owner, loan.extent
    name, attempt = (str(owner), 0) if isinstance(owner, NodeRef) else (owner.request, owner.attempt)
    return LedgerEntry(
        owner=name,
        phase=f"landing {loan.phase}",
        age_s=now - loan.since_s,
        landing_offset=extent.offset,
        landing_bytes=extent.num_bytes,
        generation=extent.generation,
        attempt=attempt,
        source=str(loan.source),
        cooldown_left_s=landing.cooldown_left_s(loan),
    )
