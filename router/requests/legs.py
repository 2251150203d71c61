"""The calls in flight for one request, on P and on D; leaving the block ends them all, on the nodes too."""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from twostep.core.errors import NodeDraining, NodeReplaced, NodeUnavailable, NodeUnreachable, ServingError, UnprovenPair
from twostep.core.ids import NodeRef
from twostep.core.request import Request, Timing
from twostep.core.ticket import Ticket
from twostep.router.nodes.connection import Guest, NodeConnection
from twostep.router.nodes.events import NodeLost, PrefillDone, PrefillFailed, Reserved, ReserveFailed
from twostep.router.nodes.inbox import Inbox
from twostep.router.nodes.pool import NodePool
from twostep.router.placement.choose import Placement
from twostep.router.placement.node_load import Work

log = logging.getLogger(__name__)


class Legs:
    """What the calls answer goes into `inbox`, in order with what comes from D's stream. The nodes are told `traceparent`."""

    def __init__(
        self, pool: NodePool, request: Request, inbox: Inbox, traceparent: str = "", *, arrived: float, deadline: float
    ) -> None:
        self._traceparent = traceparent
        self._pool = pool
        self._request = request
        self._inbox = inbox
        self._arrived = arrived
        self._deadline = deadline
        self._calls: dict[NodeRef, asyncio.Task[None]] = {}
        self._ending: dict[NodeRef, asyncio.Task[None]] = {}
        self._nodes: set[NodeRef] = set()
        self._expected_at: NodeConnection | None = None
        inbox.on_turn(self._tell_nodes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ref in tuple(self._nodes):
            self.end(ref, "the router has ended the request")
        for call in self._calls.values():
            call.cancel()
        if self._expected_at:
            self._expected_at.remove(self._request.id)

    async def reserve(self, attempt: int, placement: Placement, output_tokens: tuple[int, ...]) -> None:
        """Ask D for room. Its events carry `attempt`. Waits only for an earlier leg on D that is being ended."""
        if ending := self._ending.pop(placement.decode.ref, None):
            await ending
        node = self._admit(attempt, placement.decode.ref, placement.decode_work)
        request = self._continued(output_tokens)
        self._expect_prefill(placement)
        self._start(attempt, placement.decode.ref, self._reserve(node, attempt, placement, request))

    async def prefill(self, attempt: int, placement: Placement, ticket: Ticket, output_tokens: tuple[int, ...]) -> None:
        """Have P compute what D misses and push it there. Waits only for an earlier leg on P that is being ended."""
        source = ticket.leg.source
        if ending := self._ending.pop(source, None):
            await ending
        request = self._continued(output_tokens)
        if self._expected_at and self._expected_at is not self._pool.find(source):
            self._expected_at.remove(self._request.id)
        self._expected_at = None
        node = self._admit(attempt, source, placement.prefill_work)
        self._start(attempt, source, self._prefill(node, attempt, placement, ticket, request))

    def cancel(self, ref: NodeRef, reason: str) -> None:
        """Have one node end the request; its last word is still heard."""
        if cancel := self._pool.cancel(ref, self._request.id, reason):
            self._ending[ref] = cancel

    def end(self, ref: NodeRef, reason: str) -> None:
        """End the request on one node, at once, and hear no more of it."""
        if call := self._calls.pop(ref, None):
            call.cancel()
        if ref not in self._ending:
            self.cancel(ref, reason)
        self.leave(ref)

    def leave(self, ref: NodeRef) -> None:
        """The node has ended the request itself."""
        self._nodes.discard(ref)
        if node := self._pool.find(ref):
            node.remove(self._request.id)

    def _continued(self, output_tokens: tuple[int, ...]) -> Request:
        return replace(self._request, output_tokens=output_tokens) if output_tokens else self._request

    def _admit(self, attempt: int, ref: NodeRef, work: Work) -> NodeConnection | None:
        node = self._pool.find(ref)
        if node:
            self._nodes.add(ref)
            node.add(self._request.id, Guest(attempt, self._inbox), work)
        return node

    def _tell_nodes(self) -> None:
        """The reader of the tokens has fallen behind, or has caught up: the next heartbeat says so."""
        for ref in self._nodes:
            if node := self._pool.find(ref):
                node.wake()

    def _expect_prefill(self, placement: Placement) -> None:
        """Let P's load show the prefill to come, so that others are placed elsewhere while this one is being reserved."""
        if self._expected_at:
            self._expected_at.remove(self._request.id)
        self._expected_at = self._pool.find(placement.prefill.ref) if placement.prefill else None
        if self._expected_at:
            self._expected_at.expect(self._request.id, placement.prefill_work)

    def _start(self, attempt: int, ref: NodeRef, call: Coroutine[Any, Any, None]) -> None:
        self._calls[ref] = task = asyncio.create_task(call)
        task.add_done_callback(lambda done: self._require_foreseen(attempt, ref, done))

    def _require_foreseen(self, attempt: int, ref: NodeRef, call: "asyncio.Task[None]") -> None:
        """Let a fault of our own end the request instead of leaving it to wait for ever."""
        if not call.cancelled() and (fault := call.exception()):
            log.error("a call has failed for no foreseen reason", exc_info=fault, extra={"request": self._request.id})
            self._inbox.put(NodeLost(attempt, ref, ServingError("the router has failed on this request")))

    async def _reserve(self, node: NodeConnection | None, attempt: int, placement: Placement, request: Request) -> None:
        try:
            if node is None:
                raise NodeUnavailable(f"{placement.decode.ref} has gone")
            source = placement.prefill.description if placement.prefill else None
            async with aclosing(node.client.reserve(request, attempt, source, self._timing(), self._traceparent)) as events:
                async for event in events:
                    self._inbox.put(event)
                    if isinstance(event, Reserved):
                        return
            raise NodeUnavailable(f"{placement.decode.ref} ended the reservation without a ticket")
        except ServingError as error:
            self._suspect(node, placement.decode.ref, error)
            self._doubt(placement, error)
            self._inbox.put(ReserveFailed(attempt, error))

    async def _prefill(
        self, node: NodeConnection | None, attempt: int, placement: Placement, ticket: Ticket, request: Request
    ) -> None:
        source = ticket.leg.source
        try:
            if node is None:
                raise NodeUnavailable(f"{source} has gone")
            bill = await node.client.prefill(request, ticket, placement.decode.description, self._timing(), self._traceparent)
            node.note_outcome(None)
            self.leave(source)
            self._inbox.put(PrefillDone(attempt, bill))
        except ServingError as error:
            self._suspect(node, source, error)
            self._doubt(placement, error)
            self._inbox.put(PrefillFailed(attempt, error))

    def _suspect(self, node: NodeConnection | None, ref: NodeRef, error: ServingError) -> None:
        if node is None:
            return
        node.note_outcome(error)
        if isinstance(error, NodeUnreachable | NodeReplaced | NodeDraining):
            node.suspect(ref, error)

    def _doubt(self, placement: Placement, error: ServingError) -> None:
        """The nodes know better than the last heartbeat whether bytes move between them."""
        if isinstance(error, UnprovenPair) and placement.prefill and (node := self._pool.find(placement.prefill.ref)):
            node.doubt(placement.decode.ref)

    def _timing(self) -> Timing:
        now = asyncio.get_running_loop().time()
        return Timing(age_s=max(0.0, now - self._arrived), remaining_s=max(0.001, self._deadline - now))
