from typing import Any

import pytest

from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.kv_transfer.local_transport import LocalFabric, LocalTransport
from twostep.node.stopping import close_after


class Work:
    def __init__(self, *, ends: bool) -> None:
        self._ends = ends

    def stop(self, timeout_s: float | None = None) -> bool:
        assert timeout_s == 3.0
        return self._ends


class Watched(LocalTransport):
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("ends", [True, False])
async def test_a_transport_is_closed_only_when_nobody_can_use_it_any_more(ends: bool, caplog: Any) -> None:
    transport = Watched(LocalFabric(), NodeRef(NodeId("p"), Incarnation(1)))
    await close_after(Work(ends=ends), transport, timeout_s=3.0)
    assert transport.is_closed is ends
    assert ("has not ended" in caplog.text) is not ends
