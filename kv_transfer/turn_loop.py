"""Runs a `turn` again and again on a thread of its own, resting as long as the turn allows."""

import threading
from collections.abc import Callable

Pause = float | None
"""Seconds until the next turn: 0 for at once, None for as long as nobody wakes the loop."""


class TurnLoop:
    """Owns one thread. A turn that raises ends the thread, after `on_fault` has been told."""

    def __init__(self, name: str, turn: Callable[[], Pause], on_fault: Callable[[Exception], None]) -> None:
        self._turn = turn
        self._on_fault = on_fault
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """End the current pause, or skip the next one."""
        self._woken.set()

    def stop(self) -> None:
        """End the loop after the current turn, and wait for that."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._run_turns()
        except Exception as cause:
            self._on_fault(cause)
            raise

    def _run_turns(self) -> None:
        while not self._stopping:
            self._woken.clear()
            pause = self._turn()
            if pause != 0:
                self._woken.wait(pause)
