"""Pauses a request whose tokens nobody takes, its KV kept, and says when that has lasted too long: nobody else notices."""

from collections.abc import Collection

from twostep.core.clock import Clock
from twostep.core.ids import RequestId
from twostep.decode_node.handoff import Handoff, Pause, WhyPaused
from twostep.decode_node.handoffs import Handoffs
from twostep.decode_node.tokens import TokenStreams
from twostep.engine.engine import Engine
from twostep.node.leases import Heartbeat
from twostep.node.metrics import NodeMetrics


class Backpressure:
    """Which requests are paused, and why. Owned by the control thread.

    A request pauses with `max_unread` tokens left in its stream, or when its router holds it, and goes on when neither is so.
    """

    def __init__(
        self, engine: Engine, handoffs: Handoffs, metrics: NodeMetrics, clock: Clock, *, max_unread: int, pause_s: float
    ) -> None:
        self._engine = engine
        self._handoffs = handoffs
        self._metrics = metrics
        self._clock = clock
        self._max_unread = max_unread
        self._pause_s = pause_s

    def __len__(self) -> int:
        return sum(handoff.pause is not None for handoff in self._handoffs)

    def emitted(self, handoff: Handoff, tokens: TokenStreams) -> None:
        """A token of the request has gone into its router's stream."""
        if tokens.num_unread(handoff.order.router, handoff.id) >= self._max_unread:
            self._pause(handoff, WhyPaused.UNREAD)

    def read(self, requests: Collection[RequestId]) -> None:
        """All tokens of these requests have been taken out of the stream."""
        for handoff in filter(None, map(self._handoffs.find, requests)):
            self._relieve(handoff, WhyPaused.UNREAD)

    def hear(self, beat: Heartbeat) -> None:
        """Hold what the heartbeat says is held, and nothing else of that router."""
        for handoff in self._handoffs:
            if handoff.order.router == beat.router:
                turn = self._pause if handoff.id in beat.held else self._relieve
                turn(handoff, WhyPaused.HELD)

    def overdue(self) -> list[RequestId]:
        """Return the requests that have been paused for too long."""
        now = self._clock()
        paused = ((handoff.id, handoff.pause) for handoff in self._handoffs if handoff.pause)
        return [request for request, pause in paused if now - pause.since > self._pause_s]

    def _pause(self, handoff: Handoff, why: WhyPaused) -> None:
        """A request that the engine does not know yet is not paused: its router holds it anew with each heartbeat."""
        if not self._engine.pause(handoff.id):
            return
        handoff.pause = handoff.pause or Pause(self._clock())
        if why not in handoff.pause.why:
            handoff.pause.why.add(why)
            self._metrics.pauses.labels(why).inc()

    def _relieve(self, handoff: Handoff, why: WhyPaused) -> None:
        if handoff.pause is None:
            return
        handoff.pause.why.discard(why)
        if not handoff.pause.why:
            handoff.pause = None
            self._engine.resume(handoff.id)
