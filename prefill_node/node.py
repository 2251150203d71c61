"""A prefill node: an engine and a sender. Computes the missing prefix of each ticket and pushes it while it computes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from twostep.core.awake_clock import AwakeClock
from twostep.core.clock import Clock, seconds_until
from twostep.core.errors import Cancelled, EngineFault, NodeDraining, NodeUnavailable, ServingError, StaleLeg
from twostep.engine.engine import Engine
from twostep.kv_transfer.sender import Sender
from twostep.kv_transfer.source_digests import SourceDigests
from twostep.node.background import Background
from twostep.node.bypass import Patience
from twostep.node.control import NodeControl
from twostep.node.engine_feed import EngineFeed
from twostep.node.free_watch import FreeWatch
from twostep.node.gauges import observe_backlog, observe_engine
from twostep.node.handoff_messages import Hello
from twostep.node.integrity import Integrity, audit_owners
from twostep.node.kv_path import slow_path
from twostep.node.leases import Leases
from twostep.node.materials import Materials
from twostep.node.peer_gauges import PeerGauges
from twostep.node.readiness import Readiness
from twostep.node.sleep import note_sleep
from twostep.node.stopping import close_after
from twostep.node.trace import Tracer
from twostep.node.vllm_gauges import publish_vllm_gauges
from twostep.prefill_node.checks import require_acceptable
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.prefill_node.destination_client import DestinationClient, HandshakeClient
from twostep.prefill_node.destination_peers import DestinationPeers
from twostep.prefill_node.ledger import prefill_ledger
from twostep.prefill_node.leg import Prefilled, PrefillLeg, PrefillOrder
from twostep.prefill_node.leg_record import LegRecord
from twostep.prefill_node.legs import Legs
from twostep.prefill_node.parts import MAX_ENDED_LEGS, Parts
from twostep.prefill_node.progress import Progress
from twostep.prefill_node.pushes import Pushes

GOODBYE_CALLS = 2
"""So many calls' time may the last words to decode nodes take."""


class PrefillNode:
    """Lives inside `running()`. All methods are the control thread's."""

    def __init__(self, materials: Materials, config: PrefillNodeConfig, clock: Clock) -> None:
        node, runner, metrics = materials.address.node, materials.runner, materials.metrics
        transport, threads = materials.transport, materials.threads
        timers, layout = config.timers, runner.kv.layout
        self._awake = clock = AwakeClock(clock, timers.max_gap_s)
        self._transport = transport
        self._channels = materials.channels
        self._sender = Sender(transport, runner.kv, one_write_tokens=config.one_write_tokens, clock=clock, threads=threads)
        digests = SourceDigests(runner.kv, runner.kv.num_blocks)
        pushes = Pushes(digests, layout.block_tokens, layout.num_layers)
        engine = Engine(runner, config.engine, clock=clock, on_layers=pushes.on_layers)
        background = Background()
        record = LegRecord(node, MAX_ENDED_LEGS)
        peers = DestinationPeers(
            Hello(node, runner.fingerprint, runner.geometry, materials.address.grpc, transport.name),
            self._sender,
            HandshakeClient(self._channels, call_s=timers.call_s),
            background,
            config,
            record=record,
            metrics=metrics,
            clock=clock,
            threads=threads,
        )
        self.parts = Parts(
            node=node,
            engine=engine,
            sender=self._sender,
            digests=digests,
            pushes=pushes,
            peers=peers,
            destinations=DestinationClient(self._channels, peers.address_of, call_s=timers.call_s),
            leases=Leases(timers.lease_s, clock),
            record=record,
            background=background,
            metrics=metrics,
            tracer=Tracer(clock, sink=materials.spans, role="prefill"),
            free_watch=FreeWatch(engine, metrics, clock),
            timers=timers,
            clock=clock,
        )
        self.legs = Legs(self.parts, config.max_queued, Patience(config.max_bypasses, timers.bypass_s))
        self._progress = Progress(self.parts, self.legs)
        self._feed = EngineFeed(engine, metrics, self.parts.tracer, clock, threads)
        self.readiness = Readiness(self._feed, timers.stall_s, slow_path=slow_path(materials.path, config))
        self.integrity = self._new_integrity()
        self.control = self._new_control()
        self._peer_gauges = PeerGauges(metrics, peers.states, transport.path)
        self._publish_gauges()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the engine and the sender; on leaving, end whatever is still here and stop both.

        Raises EngineFault (in a group) when the engine dies meanwhile.
        """
        try:
            async with self.parts.background as background:
                self._sender.start()
                background.spawn_daemon(self._follow_engine())
                try:
                    yield
                except EngineFault as fault:
                    self.legs.stop_all(fault)
                    await background.finish()
                    raise
                self.legs.stop_all(NodeUnavailable(f"{self.parts.node} has stopped"))
        finally:
            await close_after(self._sender, self._transport)
            await self._channels.close()

    async def prefill(self, order: PrefillOrder) -> Prefilled:
        """Run a leg to its end, or join it when the router repeats itself. Raises the ServingError it ends with.

        The leg goes on when the caller leaves: the router's heartbeat keeps it alive, not its connection.
        """
        leg = self.legs.find(order.ticket.leg)
        if leg:
            self.parts.metrics.noop_messages.labels("prefill", "repeated").inc()
        else:
            leg = self._begin(order)
        outcome = await asyncio.shield(leg.over)
        if isinstance(outcome, ServingError):
            raise outcome
        return outcome

    async def drain(self) -> None:
        """Admit nothing more and wait until the last leg has gone, at most as long as the configuration allows.

        What still runs then is handed back to its router. Returns when the decode nodes have heard of it, or do not answer.
        """
        self.readiness.is_draining = True
        self.legs.stop_waiting(NodeDraining(f"{self.parts.node} is draining"))
        try:
            async with asyncio.timeout(self.parts.timers.drain_s):
                await self.legs.empty()
        except TimeoutError:
            self.legs.stop_all(NodeDraining(f"{self.parts.node} is stopping, its time to drain is over"))
        await self.parts.background.finish(within_s=GOODBYE_CALLS * self.parts.timers.call_s)

    def tick(self) -> float:
        """Look at every timer; returns in how many seconds one is due. Raises EngineFault when no more KV can be sent."""
        if fault := self._sender.fault:
            raise EngineFault(f"this node can send no more KV: {fault.message}") from fault
        note_sleep(self._awake.tick(), self.parts.metrics)
        for router, requests in self.parts.leases.expire().items():
            for request in requests:
                self.legs.stop(request, Cancelled(f"router {router} was silent for a whole lease"))
        self.legs.watch()
        self._progress.tell()
        self.parts.peers.check()
        self.parts.peers.expire({leg.id.destination for leg in self.legs})
        self.readiness.refresh()
        self._peer_gauges.refresh()
        self.integrity.watch()
        self.legs.advance()
        due_at = (*self.legs.due_at(), *self._progress.due_at())
        return seconds_until(due_at, self.parts.clock(), at_most=self.parts.timers.tick_s)

    def _publish_gauges(self) -> None:
        metrics, legs = self.parts.metrics, self.legs
        observe_engine(metrics, self.parts.engine, legs.owners)
        observe_backlog(metrics, self.parts.engine, legs.waiting_tokens)
        metrics.observe("legs", "Legs by phase.", "phase", legs.count)
        metrics.observe_value("queue_length", "Requests that wait for KV blocks.", lambda: len(legs.waiting))
        publish_vllm_gauges(metrics, self.parts.engine, lambda: len(legs.waiting))

    def _new_integrity(self) -> Integrity:
        engine, legs = self.parts.engine, self.legs
        return Integrity(
            (engine.audit, lambda: audit_owners(engine.requests, legs.owners)),
            lambda: not legs.owners(),
            self.readiness,
            self.parts.metrics,
            self.parts.clock,
            pause_s=self.parts.timers.audit_s,
        )

    def _new_control(self) -> NodeControl:
        return NodeControl(
            node=self.parts.node,
            engine=self.parts.engine,
            requests=self.legs,
            peers=self.parts.peers,
            leases=self.parts.leases,
            readiness=self.readiness,
            metrics=self.parts.metrics,
            pace=self._feed.pace,
            ledger=lambda: prefill_ledger(self.parts, self.legs),
            tracer=self.parts.tracer,
            growth_tokens=0,
        )

    async def _follow_engine(self) -> None:
        try:
            await self._feed.follow(self.legs.take_step)
        except EngineFault as fault:
            self.readiness.fault = fault
            self.legs.stop_all(fault)
            await self.parts.background.finish()
            raise

    def _begin(self, order: PrefillOrder) -> PrefillLeg:
        """Begin a leg. One that is refused must not begin later either: its abort may be told that it never wrote anything."""
        try:
            self._require_acceptable(order)
            return self.legs.begin(order, self.parts.engine.prepare(order.request, growth_tokens=0))
        except ServingError as error:
            self.parts.metrics.refusals.labels(error.code).inc()
            self.parts.record.refuse(order.ticket.leg, order.ticket.extent.generation)
            raise

    def _require_acceptable(self, order: PrefillOrder) -> None:
        self.readiness.require_open(self.parts.node)
        ticket = order.ticket
        require_acceptable(order, self.parts.node, self.parts.engine)
        self.parts.peers.require_proven(ticket.leg.destination)
        if not self.parts.record.may_begin(ticket.leg, ticket.extent.generation):
            raise StaleLeg(f"request {order.request.id}: attempt {ticket.leg.attempt} was over here before it began")
