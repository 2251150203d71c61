"""The engine's loop: steps while there is work, waits while there is none."""

from collections.abc import Callable

from twostep.core.errors import EngineFault
from twostep.core.threads import OWN_THREADS, Pause, Threads
from twostep.engine.engine import Engine, StepResult


class EngineLoop:
    """Runs `engine.step()` on a thread of its own; `on_step` and `on_fault` are called on that thread.

    After a fault the thread ends: nothing that the engine says can be trusted any more.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        on_step: Callable[[StepResult], None],
        on_fault: Callable[[EngineFault], None],
        threads: Threads = OWN_THREADS,
    ) -> None:
        self._engine = engine
        self._on_step = on_step
        self._on_fault = on_fault
        self._loop = threads.loop("engine", self._step, self._fail, woken=engine.work)

    def start(self) -> None:
        self._loop.start()

    def stop(self, *, timeout_s: float) -> bool:
        """End the thread after its running step. Returns whether it ended in time."""
        return self._loop.stop(timeout_s)

    def _step(self) -> Pause:
        result = self._engine.step()
        if result is None:
            return None
        self._on_step(result)
        return 0

    def _fail(self, cause: Exception) -> None:
        """Whatever it was, the node must not go on as if the engine lived."""
        if isinstance(cause, EngineFault):
            self._on_fault(cause)
            return
        unexpected = EngineFault(f"{type(cause).__name__}: {cause}")
        unexpected.__cause__ = cause
        self._on_fault(unexpected)
