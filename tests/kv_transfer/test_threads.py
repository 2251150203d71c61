"""Sender and receiver on their own threads: callers wait for futures only, and a thread that dies leaves nobody waiting."""

import threading
from collections.abc import Callable

import pytest

from twostep.core.errors import StaleLeg, TransferFailed
from twostep.core.ids import BlockId
from twostep.core.ticket import TokenRange
from twostep.kv_transfer.nixl_transport import NixlTransport
from twostep.kv_transfer.transport import Write
from twostep.kv_transfer.ucx_transport import UcxTransport
from twostep.tests.kv_transfer.host_memory import compute
from twostep.tests.kv_transfer.needs_ucx import NEEDS_UCX
from twostep.tests.kv_transfer.nodes import MakeTransport, Pair, connected_pair, local_transports

PATIENCE_S = 20
LAYERS = range(4)
TABLE = [BlockId(b) for b in range(8)]


def send_one(pair: Pair, name: str, table: list[BlockId]) -> bool:
    missing = TokenRange(0, 30)
    ticket = pair.grant(missing, table, name=name)
    leg = pair.source.sender.open(ticket, table)
    for layers in (range(2), range(2, 4)):
        compute(pair.source.memory, pair.source.digests, layers, missing, table, seed=len(name))
        leg.push(layers, range(8))
    leg.finish().result(PATIENCE_S)
    digests = pair.source.digests.of(LAYERS, missing, table)
    verdict = pair.target.receiver.finish(ticket.leg, digests).result(PATIENCE_S)
    pair.target.receiver.forget(ticket.leg).result(PATIENCE_S)
    pair.target.pool.give_back(ticket.extent, proven=True)
    return verdict.ok


def stop(pair: Pair) -> None:
    pair.source.sender.stop()
    pair.target.receiver.stop()
    pair.source.transport.close()
    pair.target.transport.close()


NIXL = pytest.param(lambda: NixlTransport, id="nixl", marks=pytest.mark.processes)
UCX = pytest.param(lambda: UcxTransport, id="ucx", marks=NEEDS_UCX)


@pytest.mark.parametrize("make", [pytest.param(local_transports, id="local"), NIXL, UCX])
def test_handoffs_pass_between_threads(make: Callable[[], MakeTransport]) -> None:
    pair = connected_pair(make())
    pair.source.sender.start()
    pair.target.receiver.start()
    assert pair.source.sender.probe(pair.target.ref, 0, 4096).result(PATIENCE_S).bytes_per_s > 0
    assert all(send_one(pair, "x" * index, TABLE) for index in range(1, 30))
    assert pair.target.pool.census().free_bytes == 1 << 20
    stop(pair)


def test_a_thread_that_dies_fails_what_was_open() -> None:
    pair = connected_pair(local_transports())
    ticket = pair.grant(TokenRange(0, 30), TABLE)
    leg = pair.source.sender.open(ticket, TABLE)
    finished = pair.target.receiver.finish(ticket.leg, pair.source.digests.of(LAYERS, TokenRange(0, 30), TABLE))
    pair.source.transport.post = broken
    pair.target.memory.copy_in = broken
    leg.push(LAYERS, range(8))
    pair.source.sender.start()
    pair.target.receiver.start()
    with pytest.raises(TransferFailed, match="the sender has failed: out of order"):
        leg.outcome.result(PATIENCE_S)
    with pytest.raises(StaleLeg, match="the receiver has failed: out of order"):
        finished.result(PATIENCE_S)
    assert pair.target.receiver.forget(ticket.leg).result(PATIENCE_S) is None
    stop(pair)


def test_stopping_does_not_wait_for_a_write_that_hangs() -> None:
    pair, hangs, goes_on = connected_pair(local_transports()), threading.Event(), threading.Event()

    def hang(*_: object) -> Write:
        hangs.set()
        goes_on.wait(PATIENCE_S)
        raise TransferFailed("too late")

    leg = pair.source.sender.open(pair.grant(TokenRange(0, 30), TABLE), TABLE)
    pair.source.transport.post = hang
    leg.push(LAYERS, range(8))
    pair.source.sender.start()
    assert hangs.wait(PATIENCE_S)
    assert not pair.source.sender.stop(timeout_s=0.01)
    with pytest.raises(TransferFailed, match="the sender has stopped"):
        leg.outcome.result(PATIENCE_S)
    goes_on.set()
    assert pair.source.sender.stop(timeout_s=PATIENCE_S)


def broken(*_: object) -> None:
    raise RuntimeError("out of order")
