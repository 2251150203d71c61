"""A decode node: an engine and a receiver. Seats requests, takes their KV in or computes it, and streams their tokens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from twostep.core.clock import Clock
from twostep.core.errors import Cancelled, DeadlineExceeded, EngineFault, NodeUnavailable, ServingError
from twostep.core.ids import NodeRef, RequestId, RouterId
from twostep.core.request import TokenEvent
from twostep.decode_node import admission, reception
from twostep.decode_node.admission import REGISTRATION, Admission
from twostep.decode_node.config import DecodeNodeConfig
from twostep.decode_node.control import DecodeControl
from twostep.decode_node.departure import Departure
from twostep.decode_node.handoffs import Handoffs
from twostep.decode_node.landing_gauges import LandingGauges
from twostep.decode_node.landing_memory import LandingMemory
from twostep.decode_node.parts import MAX_ANSWERS, Parts
from twostep.decode_node.reception import Reception
from twostep.decode_node.seats import Seats
from twostep.decode_node.source_book import SourceBook
from twostep.decode_node.source_client import SourceClient
from twostep.decode_node.tokens import TokenStreams
from twostep.engine.engine import Engine, StepResult
from twostep.engine.runner import Runner
from twostep.kv_transfer.landing import LandingPool
from twostep.kv_transfer.receiver import Receiver
from twostep.kv_transfer.transport import Transport
from twostep.node.answers import Answers
from twostep.node.background import Background
from twostep.node.calls import Channels
from twostep.node.engine_feed import EngineFeed
from twostep.node.gauges import observe_engine
from twostep.node.handoff_messages import Introduction, Welcome
from twostep.node.leases import Leases
from twostep.node.metrics import NodeMetrics
from twostep.node.readiness import Readiness


class DecodeNode:
    """Built from a loaded runner and a transport; lives inside `running()`. All methods are the control thread's."""

    def __init__(
        self,
        node: NodeRef,
        runner: Runner,
        transport: Transport,
        config: DecodeNodeConfig,
        metrics: NodeMetrics,
        clock: Clock,
    ) -> None:
        timers = config.timers
        self._memory = LandingMemory(config.landing_bytes)
        self._transport = transport
        self._channels = Channels()
        self._receiver = Receiver(transport, runner.kv, self._memory.region(), clock=clock)
        landing = LandingPool(
            config.landing_bytes, cooldown_s=timers.landing_cooldown_s, clock=clock, max_share=config.landing_share
        )
        welcome = self._welcome(node, runner)
        self.sources = SourceBook(welcome, landing, runner.kv.layout, max_sources=config.max_peers, clock=clock)
        self.parts = Parts(
            node=node,
            engine=Engine(runner, config.engine, clock=clock),
            receiver=self._receiver,
            landing=landing,
            sources=SourceClient(self._channels, self.sources.address_of, call_s=timers.call_s),
            seats=Seats(),
            tokens=TokenStreams(),
            leases=Leases(timers.lease_s, clock),
            answers=Answers(MAX_ANSWERS),
            background=Background(),
            metrics=metrics,
            timers=timers,
            clock=clock,
        )
        self.departure = Departure(self.parts, self._advance)
        self.handoffs = Handoffs(self.parts, self.departure)
        self.reception = self._new_reception(config)
        self._feed = EngineFeed(self.parts.engine, metrics, clock)
        self._landing_gauges = LandingGauges(metrics, landing)
        self._idle = asyncio.Event()
        self.readiness = Readiness(self._feed, timers.stall_s)
        self.control = DecodeControl(self.parts, self.reception, self.sources, self.readiness)
        observe_engine(metrics, self.parts.engine)
        metrics.observe_value("queue_length", "Requests that wait for memory.", lambda: len(self.reception.line))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the engine and the receiver; on leaving, end whatever is still here and stop both.

        Raises EngineFault (in a group) when the engine dies meanwhile.
        """
        try:
            async with self.parts.background as background:
                self._receiver.start()
                background.attend(self._follow_engine())
                try:
                    yield
                except EngineFault as fault:
                    self._end_all(fault)
                    await background.finish()
                    raise
                self._end_all(NodeUnavailable(f"{self.parts.node} has stopped"))
        finally:
            self.parts.tokens.close()
            await asyncio.to_thread(self._receiver.stop)
            await asyncio.to_thread(self._transport.close)
            await self._channels.close()

    async def drain(self) -> None:
        """Admit nothing more and wait until the last request has gone, at most as long as the configuration allows."""
        self.readiness.is_draining = True
        self.reception.close()
        self._advance()
        try:
            async with asyncio.timeout(self.parts.timers.drain_s):
                await self._idle.wait()
        except TimeoutError:
            self._end_all(NodeUnavailable(f"{self.parts.node} is stopping, its time to drain is over"))

    def introduce(self, introduction: Introduction) -> Welcome:
        """Meet a prefill node. A new incarnation of one known before ends what the old one was sending."""
        before = self.sources.incarnation_of(introduction.node.id)
        welcome = self.sources.introduce(introduction)
        if before and before != introduction.node:
            self.handoffs.lose_source(before)
        return welcome

    def tick(self) -> None:
        """Look at every timer. Raises EngineFault when no more KV can be received."""
        if fault := self._receiver.fault:
            raise EngineFault(f"this node can receive no more KV: {fault.message}") from fault
        parts, now = self.parts, self.parts.clock()
        for router, requests in parts.leases.expire().items():
            self._abandon(router, requests)
        for seat in parts.seats:
            if now > seat.deadline:
                self.departure.end(seat, error=DeadlineExceeded(f"request {seat.id} has run out of time"))
        self.handoffs.watch()
        self.sources.expire({seat.leg.leg.source for seat in parts.seats if seat.leg})
        self.readiness.look()
        self._landing_gauges.look()
        self._advance()

    def take_step(self, result: StepResult) -> None:
        """Stream the tokens of one engine step and end what it has finished."""
        for chunk in result.batch.chunks:
            seat = self.parts.seats.find(chunk.request)
            if seat:
                seat.tally.step(chunk, len(seat.order.request.prompt))
        for event in result.events:
            self._take_token(event)
        for request, error in result.faults:
            self.reception.end(request, error)
        self.departure.free_watch.look()
        self._advance()

    def _take_token(self, event: TokenEvent) -> None:
        seat = self.parts.seats.find(event.request)
        if seat is None or seat.order.attempt != event.attempt or seat.next_index != event.index:
            self.parts.metrics.noop_messages.labels("token").inc()
            return
        self.parts.tokens.emit(seat.order.router, event)
        seat.next_index += 1
        seat.tally.stepped_at = seat.tally.stepped_at or self.parts.clock()
        if event.finish:
            self.departure.end(seat, finish=event.finish)

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
            self.reception.end(request, Cancelled(f"router {router} was silent for a whole lease"))
        self.parts.tokens.forget(router)

    def _end_all(self, error: ServingError) -> None:
        for seat in self.parts.seats:
            self.departure.end(seat, error=error)

    def _advance(self) -> None:
        self.reception.advance()
        if self.parts.seats.is_empty:
            self._idle.set()
        else:
            self._idle.clear()

    def _new_reception(self, config: DecodeNodeConfig) -> Reception:
        parts = self.parts
        growth_tokens = config.growth_tokens or parts.engine.runner.kv.layout.block_tokens
        may_take = admission.Limits(growth_tokens, config.unattached_share)
        return Reception(
            parts,
            Admission(parts.node, parts.engine, parts.landing, may_take, parts.clock),
            self.departure,
            self.handoffs,
            self.sources,
            reception.Limits(growth_tokens, config.max_queued, config.max_unread_tokens),
        )

    def _welcome(self, node: NodeRef, runner: Runner) -> Welcome:
        return Welcome(
            node=node,
            fingerprint=runner.fingerprint,
            geometry=runner.geometry,
            transport=self._transport.name,
            transport_metadata=self._transport.metadata(),
            landing=self._memory.region(),
            registration=REGISTRATION,
            probe_offset=0,
            probe_bytes=0,
        )
