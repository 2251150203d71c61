"""Loops and calls on threads of their own."""

import asyncio
import errno
import os
import sys
import threading
from collections.abc import Callable

import pytest

from twostep.core.errors import ConfigError
from twostep.core.threads import BEHIND, OWN_THREADS, OwnThreads, Pause

PATIENCE_S = 20
NICEST = 19


async def test_a_call_returns_or_raises_what_it_would_here() -> None:
    def fails() -> int:
        raise ConfigError("no such model")

    assert await asyncio.wrap_future(OWN_THREADS.call("test", lambda: 3)) == 3
    with pytest.raises(ConfigError, match="no such model"):
        await asyncio.wrap_future(OWN_THREADS.call("test", fails))


def test_a_wake_during_a_turn_is_not_lost() -> None:
    turns: list[int] = []
    done = threading.Event()

    def turn() -> Pause:
        turns.append(len(turns))
        if len(turns) == 1:
            loop.wake()
        else:
            done.set()
        return None

    loop = OWN_THREADS.loop("test", turn, on_fault=lambda _: None)
    loop.start()
    assert done.wait(PATIENCE_S)
    assert loop.stop(PATIENCE_S)
    assert len(turns) >= 2


@pytest.mark.parametrize("clears_what_woke_it", [False, True])
def test_a_loop_told_to_stop_during_a_turn_does_not_wait_for_more_work(clears_what_woke_it: bool) -> None:
    entered, stopped, woken = threading.Event(), threading.Event(), threading.Event()

    def turn() -> Pause:
        entered.set()
        assert stopped.wait(PATIENCE_S)
        if clears_what_woke_it:
            woken.clear()
        return None

    loop = OWN_THREADS.loop("test", turn, on_fault=lambda _: None, woken=woken)
    loop.start()
    assert entered.wait(PATIENCE_S)
    assert not loop.stop(timeout_s=0)
    stopped.set()
    assert loop.stop(PATIENCE_S)


def test_a_turn_that_raises_ends_the_loop_and_says_why() -> None:
    faults: list[Exception] = []

    def turn() -> Pause:
        raise RuntimeError("out of order")

    loop = OWN_THREADS.loop("test", turn, faults.append)
    loop.start()
    assert loop.stop(PATIENCE_S)
    assert [str(fault) for fault in faults] == ["out of order"]


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def here_and_on_a_thread_started_here(tell: Callable[[], int]) -> tuple[int, int]:
    started: list[int] = []
    helper = threading.Thread(target=lambda: started.append(tell()))
    helper.start()
    helper.join(PATIENCE_S)
    return tell(), started[0]


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives each thread a priority of its own")


@needs_linux
async def test_who_computes_for_long_steps_behind_the_others_and_so_do_the_threads_it_starts() -> None:
    usual = niceness()

    def compute() -> tuple[int, int]:
        return here_and_on_a_thread_started_here(niceness)

    threads = OwnThreads(behind={"model"})
    assert await asyncio.wrap_future(threads.call("model", compute)) == (min(NICEST, usual + BEHIND),) * 2
    assert await asyncio.wrap_future(threads.call("transport", compute)) == (usual, usual)
    assert niceness() == usual


@needs_linux
def test_a_loop_may_step_behind_too() -> None:
    found: list[int] = []
    turned = threading.Event()

    def turn() -> Pause:
        found.append(niceness())
        turned.set()
        return None

    loop = OwnThreads(behind={"engine"}).loop("engine", turn, on_fault=lambda _: None)
    loop.start()
    assert turned.wait(PATIENCE_S)
    assert loop.stop(PATIENCE_S)
    assert set(found) == {min(NICEST, niceness() + BEHIND)}


@needs_linux
async def test_with_cores_of_its_own_who_computes_for_long_takes_what_nobody_else_wants() -> None:
    def policy() -> int:
        return os.sched_getscheduler(threading.get_native_id())

    def compute() -> tuple[int, int]:
        return here_and_on_a_thread_started_here(policy)

    threads = OwnThreads(behind={"model"}, own_cores=True)
    assert await asyncio.wrap_future(threads.call("model", compute)) == (os.SCHED_IDLE,) * 2
    assert await asyncio.wrap_future(threads.call("transport", compute)) == (os.SCHED_OTHER,) * 2
    assert policy() == os.SCHED_OTHER


@needs_linux
async def test_a_system_that_refuses_to_let_threads_wait_for_all_others_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    threads = OwnThreads(behind={"model"}, own_cores=True)
    with pytest.raises(ConfigError, match="own_cores: the system refuses this process SCHED_IDLE: Operation not permitted"):
        await asyncio.wrap_future(threads.call("model", lambda: 3))
