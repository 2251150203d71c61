"""A transport proves itself before a node relies on it, over NIXL too; one that moves nothing is found out."""

import pytest

from twostep.core.errors import TransferFailed
from twostep.core.ids import NodeRef
from twostep.kv_transfer.local_transport import LocalFabric, LocalTransport
from twostep.kv_transfer.nixl_transport import NixlTransport
from twostep.kv_transfer.self_test import move_some_bytes
from twostep.kv_transfer.transport import Write, WriteState
from twostep.kv_transfer.ucx_transport import UcxTransport
from twostep.tests.kv_transfer.needs_ucx import needs_ucx


class Stuck(LocalTransport):
    """Takes every write and finishes none."""

    def poll(self, write: Write) -> WriteState:
        return WriteState.PENDING


class Lying(LocalTransport):
    """Says that every write is done."""

    def post_probe(self, peer: NodeRef, landing_offset: int, pattern: bytes, note: bytes) -> Write:
        return Write(peer, 1)

    def poll(self, write: Write) -> WriteState:
        return WriteState.DONE


def test_bytes_move_within_one_process() -> None:
    fabric = LocalFabric()
    assert move_some_bytes(lambda node: LocalTransport(fabric, node)).bytes_per_s > 0


@pytest.mark.processes
def test_bytes_move_over_nixl() -> None:
    assert move_some_bytes(NixlTransport).bytes_per_s > 0


@needs_ucx
def test_bytes_move_over_ucx() -> None:
    assert move_some_bytes(UcxTransport).bytes_per_s > 0


@pytest.mark.parametrize("transport", [Stuck, Lying])
def test_a_transport_that_moves_nothing_is_found_out(transport: type[LocalTransport]) -> None:
    fabric = LocalFabric()
    with pytest.raises(TransferFailed, match="bytes that this machine sends itself do not arrive"):
        move_some_bytes(lambda node: transport(fabric, node), timeout_s=0.01)
