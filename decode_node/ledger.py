"""Lists who holds which KV blocks and landing extents of a decode node."""

from dataclasses import replace

from twostep.core.ids import NodeRef, RequestId
from twostep.decode_node.parts import Parts
from twostep.kv_transfer.landing import Loan
from twostep.node.control import block_ledger
from twostep.node.description import LedgerEntry, NodeLedger


def decode_ledger(parts: Parts) -> NodeLedger:
    """Return the ledger of this moment. A reservation's phase is that of its handoff too."""

    def phase_of(request: RequestId, phase: str) -> str:
        handoff = parts.handoffs.find(request)
        return f"{phase}, handoff {handoff.state}" if handoff else phase

    blocks, landing = block_ledger(parts.node, parts.engine.ledger(), phase_of), parts.landing.census()
    extents = tuple(_entry(loan, parts.clock()) for loan in parts.landing.ledger())
    return replace(
        blocks,
        landing_bytes=landing.total_bytes,
        landing_free_bytes=landing.free_bytes,
        entries=blocks.entries + extents,
    )


def _entry(loan: Loan, now: float) -> LedgerEntry:
    owner, extent = loan.owner, loan.extent
    return LedgerEntry(
        owner=str(owner) if isinstance(owner, NodeRef) else f"{owner.request} attempt {owner.attempt}",
        phase=f"landing {loan.phase}",
        age_s=now - loan.since_s,
        landing_offset=extent.offset,
        landing_bytes=extent.num_bytes,
        generation=extent.generation,
    )
