"""Work that blocks or computes, beside the event loop: a seam, so that who runs it, and when, can be chosen elsewhere."""

import os
import sys
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Protocol, TypeVar

from twostep.core.errors import ConfigError

T = TypeVar("T")
BEHIND = 10
"""How much nicer than their process those are that compute for long: a tenth of the core is theirs even when none rests."""
Pause = float | None
"""Seconds until the next turn: 0 for at once, None for as long as nobody wakes the loop."""


class Loop(Protocol):
    """Runs a `turn` again and again, one at a time, resting as long as the turn allows."""

    def start(self) -> None: ...

    def wake(self) -> None:
        """End the current pause, or skip the next one."""

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the loop after the current turn. Returns whether it ended in time; unset, as late as it takes."""


class Threads(Protocol):
    """What a node's blocking work runs on."""

    def loop(
        self,
        name: str,
        turn: Callable[[], Pause],
        on_fault: Callable[[Exception], None],
        *,
        woken: threading.Event | None = None,
    ) -> Loop:
        """Return a loop, not started yet. Setting `woken` wakes it too. A turn that raises ends it, and `on_fault` is told."""

    def call(self, name: str, call: Callable[[], T]) -> "Future[T]":
        """Run one long call."""


class OwnThreads:
    """A thread for each loop and each call. None keeps the process from exiting.

    Whoever is named in `behind` computes for long: its thread, and those it starts, come after the others of this process; with
    `own_cores`, where no other process computes, they have a core only while nobody else wants it. Such work raises
    ConfigError where the system does not allow that, as in some sandboxes.
    """

    def __init__(self, behind: Collection[str] = (), *, own_cores: bool = False) -> None:
        self._behind = frozenset(behind)
        self._own_cores = own_cores

    def loop(
        self,
        name: str,
        turn: Callable[[], Pause],
        on_fault: Callable[[Exception], None],
        *,
        woken: threading.Event | None = None,
    ) -> "TurnLoop":
        return TurnLoop(name, self._placed(name, turn), on_fault, woken=woken)

    def call(self, name: str, call: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()
        # From here on it cannot be cancelled: whoever waits may leave, the call goes on.
        future.set_running_or_notify_cancel()
        placed = self._placed(name, call)

        def run() -> None:
            try:
                future.set_result(placed())
            except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the future
                future.set_exception(error)

        threading.Thread(target=run, name=name, daemon=True).start()
        return future

    def _placed(self, name: str, work: Callable[[], T]) -> Callable[[], T]:
        if name not in self._behind:
            return work

        def behind() -> T:
            _step_behind(own_cores=self._own_cores)
            return work()

        return behind


class TurnLoop:
    """Implements `Loop` with a thread."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], Pause],
        on_fault: Callable[[Exception], None],
        *,
        woken: threading.Event | None = None,
    ) -> None:
        self._turn = turn
        self._on_fault = on_fault
        self._woken = woken or threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self, timeout_s: float | None = None) -> bool:
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._run_turns()
        except Exception as cause:  # noqa: BLE001 - whatever it was, nobody may go on as if this loop lived
            self._on_fault(cause)

    def _run_turns(self) -> None:
        while not self._stopping:
            self._woken.clear()
            pause = self._turn()
            # Who stops the loop wakes it too, but that may have been before the turn cleared the event.
            if pause != 0 and not self._stopping:
                self._woken.wait(pause)


def _step_behind(*, own_cores: bool) -> None:
    """Only Linux gives each thread a priority of its own; elsewhere all stay equal. Nobody else's share of the core changes
    where a program has a group of its own, as a container, a service or a session has."""
    if sys.platform != "linux":
        return
    if own_cores:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except OSError as cause:
            raise ConfigError(f"own_cores: the system refuses this process SCHED_IDLE: {cause.strerror}") from cause
    else:
        usual = os.getpriority(os.PRIO_PROCESS, os.getpid())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), usual + BEHIND)


OWN_THREADS = OwnThreads()
