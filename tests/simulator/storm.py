"""Runs many seeds over all cores, and says which failed and how."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import Any, TextIO

from twostep.core.tethered import die_with
from twostep.tests.simulator.mutants import mutated
from twostep.tests.simulator.scenario import draw
from twostep.tests.simulator.simulation import simulate

CHUNK = 20
CHUNKS_PER_PROCESS = 50
"""After so many a process is replaced: what thousands of dead worlds leave behind is not all collected."""
MAX_SEED_S = 120
"""A seed that takes so long in real time hangs."""
LOG_EVERY_S = 60


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    invariant: str
    message: str


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of one seed."""

    num_events: int = 0
    num_faults: int = 0
    virtual_s: float = 0.0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What came of some seeds, in the order of the seeds. `num_faults` are those that happened."""

    num_seeds: int
    num_events: int
    num_faults: int
    virtual_s: float
    real_s: float
    failures: tuple[Failure, ...]


def try_seed(seed: int) -> Tried:
    """Run one seed."""
    signal.signal(signal.SIGALRM, _hang)
    signal.alarm(MAX_SEED_S)
    try:
        result = simulate(draw(seed))
    except Exception as error:  # noqa: BLE001 - a seed that breaks the simulator has failed too
        return Tried(failure=Failure(seed, "the simulator holds", repr(error)))
    finally:
        signal.alarm(0)
    first = result.violations[0] if result.violations else None
    failure = Failure(seed, first.invariant, str(first)) if first else None
    return Tried(result.num_events, result.num_faults, result.ended_at_s, failure)


def _hang(*_: Any) -> None:
    raise TimeoutError(f"the seed runs for more than {MAX_SEED_S} s")


def _try_chunk(seeds: range) -> list[Tried]:
    return [try_seed(seed) for seed in seeds]


def first_kill(mutant: str, seeds: range) -> Failure | None:
    """Return how the first of `seeds` that notices a mutant notices it, or None when it survives all of them."""
    with mutated(mutant):
        return next((failure for seed in seeds if (failure := try_seed(seed).failure)), None)


def hunt(mutants: Sequence[str], seeds: range, *, jobs: int, tell: Callable[[str, Failure | None], None]) -> int:
    """Look for a kill of each mutant, one process each, and tell of it; returns how many survive."""
    survivors = 0
    with _processes(jobs) as pool:
        hunts = {mutant: pool.submit(first_kill, mutant, seeds) for mutant in mutants}
        for mutant, kill in hunts.items():
            survivors += kill.result() is None
            tell(mutant, kill.result())
    return survivors


def storm(
    seeds: range,
    *,
    jobs: int,
    tell: Callable[[str], None],
) -> Report:
    """Run `seeds` on `jobs` processes."""
    started = time.monotonic()
    tried = list[Tried]()
    with _processes(jobs, max_tasks_per_child=CHUNKS_PER_PROCESS) as pool:
        chunks = _chunks(seeds)
        running: dict[Future[Any], int] = {}
        while True:
            while len(running) < 2 * jobs and (chunk := next(chunks, None)):
                running[pool.submit(_try_chunk, chunk)] = chunk.start
            if not running:
                break
            done, _ = wait_for(running, return_when="FIRST_COMPLETED")
            for future in sorted(done, key=running.__getitem__):
                del running[future]
                tried += future.result()
            rate = len(tried) / (time.monotonic() - started)
            tell(f"{len(tried)} of {len(seeds)} seeds, {rate:.0f} a second, {len(_failures(tried))} failed")
    return Report(
        len(tried),
        sum(one.num_events for one in tried),
        sum(one.num_faults for one in tried),
        sum(one.virtual_s for one in tried),
        time.monotonic() - started,
        _failures(tried),
    )


def _failures(tried: Sequence[Tried]) -> tuple[Failure, ...]:
    return tuple(sorted(filter(None, (one.failure for one in tried)), key=lambda failure: failure.seed))


def _processes(jobs: int, *, max_tasks_per_child: int | None = None) -> ProcessPoolExecutor:
    """Return processes that end with this one, even when it is killed."""
    spawn = multiprocessing.get_context("spawn")
    end_with_this = {"initializer": die_with, "initargs": (os.getpid(),)}
    return ProcessPoolExecutor(jobs, mp_context=spawn, max_tasks_per_child=max_tasks_per_child, **end_with_this)


def _chunks(seeds: range) -> Iterator[range]:
    return (seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK))


class Progress:
    """Shows how far a storm is: always on one line of a terminal, and once a minute as a line of a log."""

    def __init__(self, stream: TextIO = sys.stderr, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next_s = clock() + LOG_EVERY_S

    def __call__(self, line: str) -> None:
        if self._stream.isatty():
            print(f"\r{line}\033[K", end="", file=self._stream, flush=True)
        elif line and self._clock() >= self._next_s:
            print(line, file=self._stream, flush=True)
            self._next_s = self._clock() + LOG_EVERY_S


def show(report: Report, *, limit: int = 10) -> Sequence[str]:
    """Return the report as lines for people."""
    lines = [
        f"{report.num_seeds} seeds in {report.real_s:.0f} s ({report.num_seeds / report.real_s:.0f} a second): "
        f"{report.num_events} events, {report.num_faults} faults, {report.virtual_s / 3600:.1f} hours of virtual time, "
        f"{len(report.failures)} failed"
    ]
    for failure in report.failures[:limit]:
        lines.append(f"  seed {failure.seed}: {failure.message}")
        lines.append(f"    python -m twostep.tests.simulator --replay {failure.seed}")
    return lines
