"""The engine's thread: steps while there is work, waits while there is none."""

import threading
from collections.abc import Callable

from twostep.core.errors import EngineFault
from twostep.engine.engine import Engine, StepResult


class EngineLoop:
    """Runs `engine.step()` on a thread of its own; `on_step` and `on_fault` are called on that thread.

    After a fault the thread ends: nothing that the engine says can be trusted any more.
    """

    def __init__(
        self, engine: Engine, *, on_step: Callable[[StepResult], None], on_fault: Callable[[EngineFault], None]
    ) -> None:
        self._engine = engine
        self._on_step = on_step
        self._on_fault = on_fault
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, timeout_s: float) -> bool:
        """End the thread after its running step. Returns whether it ended in time."""
        self._stopped = True
        self._engine.work.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._step_or_wait()
        except EngineFault as fault:
            self._on_fault(fault)
        except Exception as cause:  # noqa: BLE001 - whatever it was, the node must not go on as if the engine lived
            unexpected = EngineFault(f"{type(cause).__name__}: {cause}")
            unexpected.__cause__ = cause
            self._on_fault(unexpected)

    def _step_or_wait(self) -> None:
        result = self._engine.step()
        if result is not None:
            self._on_step(result)
        elif not self._stopped:
            self._engine.work.wait()
