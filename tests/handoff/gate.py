"""Holds an engine's thread inside a step until a test lets it go on."""

import threading

from twostep.engine.batch import Batch

LONG_S = 80.0
PATIENCE_S = 60.0
"""For what must happen while a gate is closed: shorter than the gate holds, and far longer than anything takes."""


class Gate:
    """Open at first; while closed, the engine waits in its next step."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()
        self._fault: Exception | None = None

    def __call__(self, batch: Batch) -> None:
        if self._fault:
            raise self._fault
        if not self._open.is_set():
            self.reached.set()
            assert self._open.wait(LONG_S), "the gate stayed closed"

    def close(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def fail(self, fault: Exception) -> None:
        """Let the next step raise `fault`."""
        self._fault = fault
