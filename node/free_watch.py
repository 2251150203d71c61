"""Measures how long it takes from a request's cancellation, or the end of its time, until its last block is free."""

from twostep.core.clock import Clock
from twostep.core.errors import Cancelled, DeadlineExceeded
from twostep.core.ids import RequestId
from twostep.engine.engine import Engine
from twostep.node.metrics import NodeMetrics

CUT_SHORT = (Cancelled, DeadlineExceeded)
"""What ends a request whose blocks somebody waits for."""


class FreeWatch:
    """A cancelled request's blocks are free when the engine no longer knows it: at the latest when its step ends."""

    def __init__(self, engine: Engine, metrics: NodeMetrics, clock: Clock) -> None:
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        self._cancelled_at: dict[RequestId, float] = {}

    def begin(self, request: RequestId, cancelled_at: float) -> None:
        """A request was cancelled at that time, by the node's clock."""
        self._cancelled_at.setdefault(request, cancelled_at)

    def check(self) -> None:
        """Note which blocks have become free; called after each release and each engine step."""
        freed = [request for request in self._cancelled_at if not self._engine.knows(request)]
        for request in freed:
            self._metrics.cancel_to_free.observe(self._clock() - self._cancelled_at.pop(request))
