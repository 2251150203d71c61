"""Decides whether a prefill node takes a ticket, before anything is computed."""

from twostep.core.block_hash import token_digest
from twostep.core.errors import NodeReplaced, TicketExpired, TransferFailed
from twostep.core.ids import NodeRef
from twostep.engine.engine import Engine
from twostep.prefill_node.leg import PrefillOrder


def require_acceptable(order: PrefillOrder, node: NodeRef, engine: Engine) -> None:
    """Raise a ServingError when this node cannot serve the order: other model, other incarnation, other tokens, too late."""
    ticket, request, runner = order.ticket, order.request, engine.runner
    here, there = str(node), str(ticket.leg.destination)
    runner.fingerprint.require_equal(order.fingerprint, here=here, there=there)
    if ticket.leg.source != node:
        raise NodeReplaced(f"request {request.id}: the ticket is for {ticket.leg.source}, this is {node}")
    if ticket.remaining_s <= 0:
        raise TicketExpired(f"request {request.id}: the ticket expired {-ticket.remaining_s:.3f} s ago")
    if ticket.leg.request != request.id or ticket.token_digest != token_digest(request.tokens):
        raise TransferFailed(f"request {request.id}: the ticket is for other tokens than came with it")
    if (ticket.first_head, ticket.end_head) != (runner.geometry.first_head, runner.geometry.end_head):
        raise TransferFailed(f"request {request.id}: the ticket is for other KV heads than this node holds")
    if ticket.missing.end != len(request.tokens) or ticket.missing.start % runner.geometry.block_tokens:
        raise TransferFailed(f"request {request.id}: the ticket's range {ticket.missing} does not fit the prompt")
