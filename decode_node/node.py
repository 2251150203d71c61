"""A decode node: an engine and a receiver. Reserves memory, takes KV in or computes it, and streams their tokens."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import asdict

from twostep.core.awake_clock import AwakeClock
from twostep.core.clock import Clock, seconds_until
from twostep.core.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineFault,
    NodeDraining,
    NodeUnavailable,
    ServingError,
    SlowConsumer,
)
from twostep.core.ids import Generation, NodeRef, RequestId, RouterId
from twostep.core.request import TokenEvent
from twostep.core.turnover import HoldMeter
from twostep.decode_node import admission, reservation_queue
from twostep.decode_node.admission import REGISTRATION, Admission
from twostep.decode_node.backpressure import Backpressure
from twostep.decode_node.config import DecodeNodeConfig
from twostep.decode_node.handoffs import Handoffs
from twostep.decode_node.landing_gauges import LandingGauges
from twostep.decode_node.ledger import decode_ledger
from twostep.decode_node.legs import Legs
from twostep.decode_node.parts import MAX_ANSWERS, Parts
from twostep.decode_node.release import Release
from twostep.decode_node.reservation_queue import ReservationQueue
from twostep.decode_node.source_client import GIVE_UP_CALLS, SourceClient
from twostep.decode_node.source_peers import SourcePeers
from twostep.decode_node.tokens import TokenStreams
from twostep.engine.engine import Engine, StepResult
from twostep.engine.runner import Runner
from twostep.kv_transfer.landing import LandingPool
from twostep.kv_transfer.receiver import Receiver
from twostep.node.answers import Answers
from twostep.node.background import Background
from twostep.node.bypass import Patience
from twostep.node.control import NodeControl
from twostep.node.engine_feed import EngineFeed
from twostep.node.gauges import observe_engine
from twostep.node.handoff_messages import Hello, HelloReply
from twostep.node.integrity import Integrity, audit_owners
from twostep.node.kv_path import landing_memory, slow_path
from twostep.node.leases import Leases
from twostep.node.materials import Materials
from twostep.node.peer_gauges import PeerGauges
from twostep.node.readiness import Readiness
from twostep.node.sleep import note_sleep
from twostep.node.stopping import close_after
from twostep.node.trace import Tracer
from twostep.node.vllm_gauges import publish_vllm_gauges

PAIR_SHARE = 0.75
"""One prefill node leaves the others a part of the landing pool."""


class DecodeNode:
    """Lives inside `running()`. All methods are the control thread's."""

    def __init__(self, materials: Materials, config: DecodeNodeConfig, clock: Clock) -> None:
        """Raises ConfigError when landing memory cannot be had."""
        node, runner, metrics = materials.address.node, materials.runner, materials.metrics
        transport, threads, timers = materials.transport, materials.threads, config.timers
        self._awake = clock = AwakeClock(clock, timers.max_gap_s)
        self._memory = landing_memory(materials.path, runner.kv, config.landing_bytes)
        self._transport = transport
        self._channels = materials.channels
        self._receiver = Receiver(transport, runner.kv, self._memory.region(), clock=clock, threads=threads)
        landing = LandingPool(
            config.landing_bytes, cooldown_s=timers.landing_cooldown_s, clock=clock, max_share=config.landing_share
        )
        reply = self._hello_reply(node, runner)
        self.peers = SourcePeers(reply, landing, self._memory, runner.kv.layout, max_sources=config.max_peers, clock=clock)
        self.parts = Parts(
            node=node,
            engine=Engine(runner, config.engine, clock=clock),
            receiver=self._receiver,
            landing=landing,
            sources=SourceClient(self._channels, self.peers.address_of, call_s=timers.call_s),
            handoffs=Handoffs(),
            tokens=TokenStreams(self._tokens_read),
            leases=Leases(timers.lease_s, clock),
            answers=Answers(MAX_ANSWERS),
            unattached_holds=HoldMeter(),
            background=Background(),
            metrics=metrics,
            tracer=Tracer(clock, sink=materials.spans, role="decode"),
            timers=timers,
            clock=clock,
        )
        self.backpressure = Backpressure(
            self.parts.engine,
            self.parts.handoffs,
            metrics,
            clock,
            max_unread=config.pause_unread_tokens,
            pause_s=timers.pause_s,
        )
        self.release = Release(self.parts, self._advance)
        self.legs = Legs(self.parts, self.release)
        growth_tokens = runner.kv.layout.block_tokens + config.lookahead_tokens
        self._feed = EngineFeed(self.parts.engine, metrics, self.parts.tracer, clock, threads)
        self.readiness = Readiness(self._feed, timers.stall_s, slow_path=slow_path(materials.path, config))
        self.queue = self._new_queue(config, growth_tokens)
        self._landing_gauges = LandingGauges(metrics, landing)
        self._idle = asyncio.Event()
        self.control = self._new_control(growth_tokens)
        self.integrity = self._new_integrity()
        self._peer_gauges = PeerGauges(metrics, self.peers.states, transport.path)
        self._publish_gauges()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the engine and the receiver; on leaving, end whatever is still here and stop both.

        Raises EngineFault (in a group) when the engine dies meanwhile.
        """
        try:
            async with self.parts.background as background:
                self._receiver.start()
                background.spawn_daemon(self._follow_engine())
                try:
                    yield
                except EngineFault as fault:
                    self._end_all(fault)
                    await background.finish()
                    raise
                self._end_all(NodeUnavailable(f"{self.parts.node} has stopped"))
        finally:
            self.parts.tokens.close()
            await close_after(self._receiver, self._transport)
            await self._channels.close()

    async def drain(self) -> None:
        """Admit nothing more and wait until the last request has gone, at most as long as the configuration allows.

        What still runs then is handed back to its router. Returns when the prefill nodes that were told have answered, or will
        not: until then they may write into the landing pool.
        """
        self.readiness.is_draining = True
        self.queue.send_away()
        self._advance()
        try:
            async with asyncio.timeout(self.parts.timers.drain_s):
                await self._idle.wait()
        except TimeoutError:
            self._end_all(NodeDraining(f"{self.parts.node} is stopping, its time to drain is over"))
        await self.parts.background.finish(within_s=GIVE_UP_CALLS * self.parts.timers.call_s)

    def answer_hello(self, hello: Hello) -> HelloReply:
        """Meet a prefill node. A new incarnation of one known before ends what the old one was sending."""
        before = self.peers.incarnation_of(hello.node.id)
        reply = self.peers.answer_hello(hello)
        if before and before != hello.node:
            self.legs.lose_source(before)
        return reply

    def tick(self) -> float:
        """Look at every timer; returns in how many seconds one is due. Raises EngineFault when no more KV can be received."""
        if fault := self._receiver.fault:
            raise EngineFault(f"this node can receive no more KV: {fault.message}") from fault
        note_sleep(self._awake.tick(), self.parts.metrics)
        parts, now = self.parts, self.parts.clock()
        for router, requests in parts.leases.expire().items():
            self._abandon(router, requests)
        for handoff in parts.handoffs:
            if now >= handoff.deadline:
                self.release.end(handoff, error=DeadlineExceeded(f"request {handoff.id} has run out of time"))
        for request in parts.engine.hopeless():
            parts.metrics.hopeless.inc()
            self.queue.stop(request, DeadlineExceeded(f"request {request} cannot be answered in what is left of its time"))
        for request in self.backpressure.overdue():
            parts.metrics.slow_consumers.inc()
            self.queue.stop(request, SlowConsumer(f"nobody has taken the tokens of {request} for {parts.timers.pause_s:g} s"))
        self.legs.watch()
        self.peers.expire({handoff.leg.id.source for handoff in parts.handoffs if handoff.leg})
        self.readiness.refresh()
        self._landing_gauges.refresh()
        self._peer_gauges.refresh()
        self.integrity.watch()
        self._advance()
        due_at = (*self.legs.due_at(), *(handoff.deadline for handoff in parts.handoffs))
        return seconds_until(due_at, parts.clock(), at_most=parts.timers.tick_s)

    def take_step(self, result: StepResult) -> None:
        """Stream the tokens of one engine step and end what it has finished."""
        for chunk in result.batch.chunks:
            handoff = self.parts.handoffs.find(chunk.request)
            if handoff:
                handoff.meter.step(chunk, len(handoff.order.request.prompt))
        for event in result.events:
            self._take_token(event)
        for request, error in result.faults:
            self.queue.stop(request, error)
        self.release.free_watch.check()
        self._advance()

    def _take_token(self, event: TokenEvent) -> None:
        handoff = self.parts.handoffs.find(event.request)
        if handoff is None or handoff.order.attempt != event.attempt or handoff.next_index != event.index:
            self.parts.metrics.noop_messages.labels("token", "late").inc()
            return
        self.parts.tokens.emit(handoff.order.router, event)
        self.backpressure.emitted(handoff, self.parts.tokens)
        handoff.next_index += 1
        handoff.meter.stepped_at = handoff.meter.stepped_at or self.parts.clock()
        if event.finish:
            self.release.end(handoff, finish=event.finish)

    def _tokens_read(self, requests: Collection[RequestId]) -> None:
        self.backpressure.read(requests)

    async def _follow_engine(self) -> None:
        try:
            await self._feed.follow(self.take_step)
        except EngineFault as fault:
            self.readiness.fault = fault
            self._end_all(fault)
            await self.parts.background.finish()
            raise

    def _abandon(self, router: RouterId, requests: tuple[RequestId, ...]) -> None:
        for request in requests:
            self.queue.stop(request, Cancelled(f"router {router} was silent for a whole lease"))
        self.parts.tokens.forget(router)

    def _end_all(self, error: ServingError) -> None:
        for handoff in self.parts.handoffs:
            self.release.end(handoff, error=error)

    def _advance(self) -> None:
        self.queue.advance()
        if self.parts.handoffs.is_empty:
            self._idle.set()
        else:
            self._idle.clear()

    def _publish_gauges(self) -> None:
        metrics, handoffs = self.parts.metrics, self.parts.handoffs
        observe_engine(metrics, self.parts.engine, handoffs.owners)
        metrics.observe("reservations", "Requests by the state of their handoff.", "state", handoffs.count)
        metrics.observe_counts("receiver_events", "Notifications and copies.", "what", lambda: asdict(self._receiver.counts))
        metrics.observe_value("paused_requests", "Requests whose tokens nobody takes.", lambda: len(self.backpressure))
        metrics.observe_value("queue_length", "Requests that wait for memory.", lambda: len(self.queue.waiting))
        publish_vllm_gauges(metrics, self.parts.engine, lambda: len(self.queue.waiting))

    def _new_integrity(self) -> Integrity:
        engine, handoffs = self.parts.engine, self.parts.handoffs
        return Integrity(
            (engine.audit, self.parts.landing.audit, lambda: audit_owners(engine.requests, handoffs.owners)),
            lambda: handoffs.is_empty,
            self.readiness,
            self.parts.metrics,
            self.parts.clock,
            pause_s=self.parts.timers.audit_s,
        )

    def _new_control(self, growth_tokens: int) -> NodeControl:
        return NodeControl(
            node=self.parts.node,
            engine=self.parts.engine,
            requests=self.queue,
            peers=self.peers,
            leases=self.parts.leases,
            readiness=self.readiness,
            metrics=self.parts.metrics,
            pace=self._feed.pace,
            ledger=lambda: decode_ledger(self.parts),
            tracer=self.parts.tracer,
            hold=self.backpressure.hear,
            growth_tokens=growth_tokens,
        )

    def _new_queue(self, config: DecodeNodeConfig, growth_tokens: int) -> ReservationQueue:
        parts = self.parts
        pair_bytes = config.pair_bytes or int(config.landing_bytes * PAIR_SHARE)
        may_take = admission.Limits(config.unattached_share, pair_bytes)
        patience = Patience(config.max_bypasses, config.timers.bypass_s)
        return ReservationQueue(
            parts,
            Admission(parts.node, parts.engine, parts.landing, parts.unattached_holds, may_take, parts.clock),
            self.release,
            self.legs,
            self.peers,
            self.readiness,
            reservation_queue.Limits(growth_tokens, config.max_queued, config.max_unread_tokens, patience),
        )

    def _hello_reply(self, node: NodeRef, runner: Runner) -> HelloReply:
        return HelloReply(
            node=node,
            fingerprint=runner.fingerprint,
            geometry=runner.geometry,
            transport=self._transport.name,
            transport_metadata=self._transport.metadata(),
            landing=self._memory.region(),
            registration=REGISTRATION,
            probe_offset=0,
            probe_bytes=0,
            generation=Generation(0),
        )
