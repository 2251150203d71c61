"""Decides which worker is started, stopped or given up, from what happens to them. Pure: events in, orders out.

The first worker proves the configuration, so that what is wrong with it is said once. The others follow it.
"""

import enum
import signal
from collections.abc import Sequence
from dataclasses import dataclass

STEADY_S = 10.0
"""A worker that has served for so long is started again at once when it dies; others wait, and each time twice as long."""
FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0
MAX_FAILED_STARTS = 5
"""So many in a row, none having come to serve, end the program."""


@dataclass(frozen=True, slots=True)
class Listening:
    """The worker takes connections."""

    number: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker's process is gone. `served_s` is how long it took connections, None if it never came to it."""

    number: int
    code: int
    """Negative for the signal that has killed it."""
    served_s: float | None


@dataclass(frozen=True, slots=True)
class Due:
    """The worker's delay is over."""

    number: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The program is to end."""


Event = Listening | Ended | Due | StopAsked


@dataclass(frozen=True, slots=True)
class Start:
    """Start the worker; it is its `num_starts`-th time."""

    number: int
    num_starts: int


@dataclass(frozen=True, slots=True)
class StartLater:
    """Say `Due` after `delay_s`."""

    number: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Let the worker drain and end."""

    number: int


@dataclass(frozen=True, slots=True)
class Tell:
    """All workers listen for the first time: tell where."""


@dataclass(frozen=True, slots=True)
class Leave:
    """No worker is left: end the program with `code`."""

    code: int


Order = Start | StartLater | Stop | Tell | Leave


class State(enum.Enum):
    STARTING = enum.auto()
    SERVING = enum.auto()
    DELAYED = enum.auto()
    GONE = enum.auto()


@dataclass(slots=True)
class Worker:
    state: State = State.GONE
    num_starts: int = 0
    num_early_deaths: int = 0


class RestartPolicy:
    """`num_workers` of them, by number from 0."""

    def __init__(self, num_workers: int) -> None:
        self._workers = [Worker() for _ in range(num_workers)]
        self._is_proven = False
        self._is_told = False
        self._num_failed_starts = 0
        self._code: int | None = None
        """What the program will end with, once it is to end."""

    def begin(self) -> Sequence[Order]:
        return [self._start(0)]

    def on(self, event: Event) -> Sequence[Order]:
        match event:
            case Listening(number):
                return self._on_listening(number)
            case Ended():
                return self._on_ended(event)
            case Due(number):
                return [self._start(number)] if self._workers[number].state is State.DELAYED else []
            case StopAsked():
                return self._stop_all(0) if self._code is None else []

    def _on_listening(self, number: int) -> Sequence[Order]:
        self._workers[number].state = State.SERVING
        self._num_failed_starts = 0
        if self._code is not None:
            return []
        if not self._is_proven:
            self._is_proven = True
            return [self._start(other) for other in range(1, len(self._workers))]
        if not self._is_told and all(worker.state is State.SERVING for worker in self._workers):
            self._is_told = True
            return [Tell()]
        return []

    def _on_ended(self, ended: Ended) -> Sequence[Order]:
        worker = self._workers[ended.number]
        worker.state = State.GONE
        if self._code is not None:
            # Before its handlers are there, SIGTERM kills.
            if ended.code not in (0, -signal.SIGTERM):
                self._code = self._code or 1
            return self._leave_when_alone()
        if not self._is_proven:
            return [Leave(max(ended.code, 1))]
        if ended.served_s is None:
            self._num_failed_starts += 1
        if self._num_failed_starts == MAX_FAILED_STARTS:
            return self._stop_all(max(ended.code, 1))
        return [self._start_later(ended)]

    def _start(self, number: int) -> Start:
        worker = self._workers[number]
        worker.state = State.STARTING
        worker.num_starts += 1
        return Start(number, worker.num_starts)

    def _start_later(self, ended: Ended) -> StartLater:
        worker = self._workers[ended.number]
        worker.state = State.DELAYED
        is_early = ended.served_s is None or ended.served_s < STEADY_S
        worker.num_early_deaths = worker.num_early_deaths + 1 if is_early else 0
        delay_s = FIRST_DELAY_S * 2 ** (worker.num_early_deaths - 1) if is_early else 0.0
        return StartLater(ended.number, min(MAX_DELAY_S, delay_s))

    def _stop_all(self, code: int) -> Sequence[Order]:
        self._code = code
        alive = [number for number, worker in enumerate(self._workers) if worker.state in (State.STARTING, State.SERVING)]
        for worker in self._workers:
            worker.state = State.GONE if worker.state is State.DELAYED else worker.state
        return [Stop(number) for number in alive] or [Leave(code)]

    def _leave_when_alone(self) -> Sequence[Order]:
        is_alone = all(worker.state is State.GONE for worker in self._workers)
        return [Leave(self._code or 0)] if is_alone else []
