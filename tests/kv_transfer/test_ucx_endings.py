"""What of a UCX write still lands after which act, and that no end of it is the end of the process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from twostep.core.memory import MemoryRegion
from twostep.kv_transfer import ucx_arrivals
from twostep.kv_transfer.transport import PeerLanding, Write, WriteState
from twostep.kv_transfer.ucx_protocol import MESSAGE_BYTES
from twostep.kv_transfer.ucx_transport import UcxTransport
from twostep.tests.handoff.clock import ManualClock
from twostep.tests.kv_transfer.host_memory import region_of
from twostep.tests.kv_transfer.needs_ucx import NEEDS_UCX
from twostep.tests.kv_transfer.nodes import node

pytestmark = [*NEEDS_UCX]
UNIT = 64 << 10
PAGE = 4096
"""Divides units and messages: its first byte stands for all of it."""
NUM_UNITS = 1024
PATIENCE_S = 20.0
QUIET_POLLS = 2000
UNITS = np.arange(NUM_UNITS, dtype=np.int32)
CHILD = Path(__file__).with_name("writing_process.py")


class Target:
    """This process's landing pool."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = np.zeros(NUM_UNITS * UNIT, np.uint8)
        self.transport = UcxTransport(node("d"), self.clock)
        self.transport.register_landing(region_of(self.memory))
        self.notes: list[bytes] = []

    @property
    def landing(self) -> PeerLanding:
        return PeerLanding(node("d"), self.transport.metadata(), region_of(self.memory), 1)

    @property
    def num_landed(self) -> int:
        return PAGE * int(np.count_nonzero(self.memory[::PAGE]))

    def take(self) -> None:
        self.notes += self.transport.notifications()

    def take_until(self, holds: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < give_up_s, f"{self.num_landed} bytes have landed"
            self.take()

    def take_what_still_comes(self) -> int:
        """Poll until nothing has come for many polls; return how much came."""
        start = seen = self.num_landed
        quiet = 0
        while quiet < QUIET_POLLS:
            self.take()
            quiet = quiet + 1 if self.num_landed == seen else 0
            seen = self.num_landed
        return seen - start


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    yield target
    target.transport.close()


class Source:
    """A writer in this process, whose write has landed in part."""

    def __init__(self, target: Target) -> None:
        self.memory = np.ones(NUM_UNITS * UNIT, np.uint8)
        self.transport = UcxTransport(node("p"))
        self.transport.register_source(region_of(self.memory), UNIT)
        self.transport.connect(target.landing)
        self.write: Write = self.transport.post(node("d"), UNITS, UNITS, b"whole")
        while not target.num_landed:
            assert self.transport.poll(self.write) is WriteState.PENDING
            target.take()
        assert 0 < target.num_landed < NUM_UNITS * UNIT


@pytest.fixture
def source(target: Target) -> Iterator[Source]:
    source = Source(target)
    yield source
    source.transport.close()


@contextmanager
def writer(target: Target) -> Iterator[subprocess.Popen[str]]:
    """A writer in a process of its own, whose write has landed in part."""
    command = [sys.executable, str(CHILD), str(NUM_UNITS), str(UNIT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        told = {"address": target.memory.ctypes.data, "metadata": target.transport.metadata().hex()}
        print(json.dumps(told), file=process.stdin, flush=True)
        try:
            target.take_until(lambda: target.num_landed > 0)
            yield process
        finally:
            process.kill()


def test_a_writer_that_was_frozen_and_goes_on_lands_all_of_it(target: Target) -> None:
    with writer(target) as process:
        os.kill(process.pid, signal.SIGSTOP)
        target.take_what_still_comes()
        assert target.num_landed < NUM_UNITS * UNIT
        os.kill(process.pid, signal.SIGCONT)
        target.take_until(lambda: target.notes == [b"whole"])
    assert target.num_landed == NUM_UNITS * UNIT


def test_of_a_killed_writer_whole_messages_land_that_had_arrived_and_no_note(target: Target) -> None:
    with writer(target) as process:
        process.kill()
        process.wait()
        target.take_until(lambda: not target.transport._arrivals._sources)
        landed = target.num_landed
        assert landed < NUM_UNITS * UNIT
        assert landed % MESSAGE_BYTES == 0
        assert target.take_what_still_comes() == 0
    assert target.notes == []


def test_what_a_writer_that_forgets_has_not_sent_never_lands(target: Target, source: Source) -> None:
    source.transport.forget(node("d"))
    assert source.transport.poll(source.write) is WriteState.FAILED
    target.take_what_still_comes()
    assert target.num_landed < NUM_UNITS * UNIT
    assert target.num_landed % MESSAGE_BYTES == 0


def test_nothing_lands_while_the_target_does_not_poll(target: Target, source: Source) -> None:
    landed = target.num_landed
    for _ in range(10_000):
        assert source.transport.poll(source.write) is WriteState.PENDING
    assert target.num_landed == landed


def test_nothing_lands_after_the_target_has_closed_and_the_writer_fails(target: Target, source: Source) -> None:
    target.transport.close()
    landed = target.num_landed
    state = WriteState.PENDING
    while state is WriteState.PENDING:
        state = source.transport.poll(source.write)
    assert (state, target.num_landed) == (WriteState.FAILED, landed)


def test_a_write_that_does_not_come_in_time_fails_and_lands_nothing_more(target: Target, source: Source) -> None:
    target.clock.advance(ucx_arrivals.PATIENCE_S)
    target.take()
    landed = target.num_landed
    state = WriteState.PENDING
    while state is WriteState.PENDING:
        state = source.transport.poll(source.write)
        target.take()
    target.take_what_still_comes()
    assert (state, target.num_landed, target.notes) == (WriteState.FAILED, landed, [])
    again = source.transport.post(node("d"), UNITS[:8], UNITS[:8], b"again")
    while source.transport.poll(again) is WriteState.PENDING:
        target.take()
    assert target.notes == [b"again"]


def test_an_offer_without_the_token_or_outside_the_pool_writes_nothing(target: Target) -> None:
    outside = MemoryRegion(target.memory.ctypes.data, NUM_UNITS * UNIT)
    source = UcxTransport(node("p"))
    memory = np.ones(NUM_UNITS * UNIT, np.uint8)
    source.register_source(region_of(memory), UNIT)
    source.connect(target.landing)
    link = source._links[node("d")]
    link.start = outside.num_bytes - UNIT
    write = source.post(node("d"), UNITS[:2], UNITS[:2], b"outside")
    state = WriteState.PENDING
    while state is WriteState.PENDING:
        state = source.poll(write)
        target.take()
    assert (state, target.num_landed) == (WriteState.FAILED, 0)
    link.start = 0
    target.transport._arrivals._token = bytes(16)
    write = source.post(node("d"), UNITS[:2], UNITS[:2], b"stranger")
    target.take_what_still_comes()
    assert source.poll(write) is WriteState.PENDING
    assert (target.num_landed, target.notes) == (0, [])
    source.close()
