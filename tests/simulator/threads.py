"""The threads of a simulated process: loops and calls become its events, and a turn may be left in its middle."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from twostep.core.threads import Pause
from twostep.tests.simulator.fiber import Fiber, give_back, take_fiber

if TYPE_CHECKING:
    from twostep.tests.simulator.process import Process

T = TypeVar("T")
LONGEST_POLL_S = {"kv-sender": 0.02}
"""A loop that polls is woken by what it polls for; this is how long it sleeps at most without, by default the longer."""
LONGER_POLL_S = 0.3


class SimThreads:
    """Implements `Threads`."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self.loops: list[SimTurnLoop] = []

    def loop(
        self,
        name: str,
        turn: Callable[[], Pause],
        on_fault: Callable[[Exception], None],
        *,
        woken: threading.Event | None = None,
    ) -> "SimTurnLoop":
        loop = SimTurnLoop(self._process, name, turn, on_fault, woken or threading.Event())
        self.loops.append(loop)
        return loop

    def call(self, name: str, call: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 - handed to whoever awaits the future
                future.set_exception(error)

        self._process.after(self._process.hesitation() + self._process.chance.random() * 2e-3, run)
        return future

    def look(self) -> None:
        """Run whoever was woken by the event before."""
        for loop in self.loops:
            loop.look()

    def news(self) -> None:
        """Something has come that loops poll for."""
        for loop in self.loops:
            loop.poll_now()

    def hang(self, name: str, until_s: float) -> None:
        """Let the named loop's thread stand still: it runs no turn before `until_s`, whoever wakes it."""
        for loop in self.loops:
            if loop.name == name:
                loop.hang(until_s)

    def unwind(self) -> None:
        for loop in self.loops:
            loop.unwind()


class SimTurnLoop:
    """Implements `Loop`. At most one turn is scheduled or running."""

    def __init__(
        self,
        process: "Process",
        name: str,
        turn: Callable[[], Pause],
        on_fault: Callable[[Exception], None],
        woken: threading.Event,
    ) -> None:
        self.name = name
        self._process = process
        self._turn = turn
        self._on_fault = on_fault
        self._woken = woken
        self._is_running = False
        self._is_started = False
        self._is_over = False
        self._is_polling = False
        self._hung_until = 0.0
        self._sleep = 0
        self._fiber: Fiber | None = None
        self._pause: Pause = None

    def start(self) -> None:
        self._is_started = True
        self._schedule()

    def wake(self) -> None:
        self._woken.set()

    def stop(self, timeout_s: float | None = None) -> bool:
        self._is_over = True
        return True

    def look(self) -> None:
        if self._is_started and not self._is_running and not self._is_over and self._woken.is_set():
            self._schedule()

    def poll_now(self) -> None:
        if self._is_polling and not self._is_running and not self._is_over:
            self._schedule()

    def hang(self, until_s: float) -> None:
        self._hung_until = until_s

    def unwind(self) -> None:
        if self._fiber:
            fiber, self._fiber = self._fiber, None
            give_back(fiber)

    def _schedule(self, delay_s: float = 0.0) -> None:
        self._is_running = True
        self._process.after(delay_s + self._process.hesitation(), self._begin)

    def _begin(self) -> None:
        wait_s = self._hung_until - self._process.world.now
        if wait_s > 0:
            self._process.after(wait_s, self._begin)
            return
        if self._is_over:
            self._is_running = False
            return
        self._woken.clear()
        self._sleep += 1
        if self.name != "kv-sender" and self._process.chance.random() < self._process.world.sliced:
            self._fiber = take_fiber()
            self._go_on(lambda: self._fiber.start(self._run_turn))  # type: ignore[union-attr]
        else:
            self._run_turn()
            self._end_turn()

    def _go_on(self, step: Callable[[], None]) -> None:
        step()
        assert self._fiber is not None
        if self._fiber.is_paused:
            self._process.after(self._process.chance.random() * 4e-3, self._resume)
            return
        fiber, self._fiber = self._fiber, None
        give_back(fiber)
        self._end_turn()

    def _resume(self) -> None:
        wait_s = self._hung_until - self._process.world.now
        if wait_s > 0:
            self._process.after(wait_s, self._resume)
        elif self._fiber is not None:
            self._go_on(self._fiber.resume)

    def _run_turn(self) -> None:
        try:
            self._pause = self._turn()
        except Exception as cause:  # noqa: BLE001 - as the real loop does
            self._is_over = True
            self._on_fault(cause)

    def _end_turn(self) -> None:
        self._is_running = False
        pause = self._pause
        self._is_polling = pause is not None and pause > 0
        if self._is_over:
            return
        if pause == 0:
            self._schedule(self._process.step_s() if self.name == "engine" else 0.0)
        elif self._woken.is_set():
            self._schedule()
        elif pause is not None:
            sleep = self._sleep
            self._process.after(LONGEST_POLL_S.get(self.name, LONGER_POLL_S), lambda: self._wake_from(sleep))

    def _wake_from(self, sleep: int) -> None:
        if sleep == self._sleep and not self._is_running and not self._is_over:
            self._schedule()
