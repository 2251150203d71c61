"""Brings what happens on the engine's thread to the control thread, step by step and in order."""

import asyncio
from collections.abc import Callable

from twostep.core.clock import Clock
from twostep.core.errors import EngineFault
from twostep.core.threads import OWN_THREADS, Threads
from twostep.engine.engine import Engine, StepResult
from twostep.engine.loop import EngineLoop
from twostep.node.metrics import NodeMetrics
from twostep.node.pace_meter import PaceMeter
from twostep.node.trace import Tracer

STOP_S = 10.0


class EngineFeed:
    """Runs the engine's thread. `follow` is the node's task that takes up its steps; `pace` is measured from them."""

    def __init__(
        self, engine: Engine, metrics: NodeMetrics, tracer: Tracer, clock: Clock, threads: Threads = OWN_THREADS
    ) -> None:
        self.pace = PaceMeter()
        self._engine = engine
        self._metrics = metrics
        self._tracer = tracer
        self._clock = clock
        self._threads = threads
        self._seen_steps = 0
        self._seen_at = clock()

    async def follow(self, on_step: Callable[[StepResult], None]) -> None:
        """Start the engine and call `on_step` for each step until cancelled. Raises EngineFault when the engine dies."""
        control = asyncio.get_running_loop()
        news: asyncio.Queue[StepResult | EngineFault] = asyncio.Queue()

        def deliver(item: StepResult | EngineFault) -> None:
            control.call_soon_threadsafe(news.put_nowait, item)

        loop = EngineLoop(self._engine, on_step=deliver, on_fault=deliver, threads=self._threads)
        loop.start()
        try:
            while True:
                self._take(await news.get(), on_step)
        finally:
            await asyncio.to_thread(loop.stop, timeout_s=STOP_S)

    def stalled_s(self) -> float:
        """Return for how long the engine has been seen with work but without a new step; asked regularly by the timer."""
        load = self._engine.load()
        if not load.num_running or load.num_steps != self._seen_steps:
            self._seen_steps, self._seen_at = load.num_steps, self._clock()
        return self._clock() - self._seen_at

    def _take(self, item: StepResult | EngineFault, on_step: Callable[[StepResult], None]) -> None:
        if isinstance(item, EngineFault):
            raise item
        self.pace.take(item)
        self._metrics.observe_step(item.record)
        self._metrics.request_faults.inc(len(item.faults))
        self._tracer.step(item.record)
        on_step(item)
