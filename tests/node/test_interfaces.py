"""Where UCX may listen."""

import os
from pathlib import Path

import pytest

from twostep.node.interfaces import UCX_DEVICES, keep_to_interface_of


def chosen(host: str, rdma: Path) -> str | None:
    keep_to_interface_of(host, rdma)
    return os.environ.get(UCX_DEVICES)


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UCX_DEVICES, "so that it is put back")
    monkeypatch.delenv(UCX_DEVICES)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.1", "localhost"])
def test_a_node_on_loopback_is_reached_from_this_machine_alone(host: str, tmp_path: Path, unset: None) -> None:
    assert chosen(host, tmp_path) == "lo"


def test_rdma_ports_are_used_too(tmp_path: Path, unset: None) -> None:
    for port in ("mlx5_1/ports/1", "mlx5_0/ports/2", "mlx5_0/ports/1"):
        (tmp_path / port).mkdir(parents=True)
    assert chosen("127.0.0.1", tmp_path) == "lo,mlx5_0:1,mlx5_0:2,mlx5_1:1"


def test_what_the_operator_says_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UCX_DEVICES, "eth7")
    assert chosen("127.0.0.1", tmp_path) == "eth7"


def test_an_address_that_no_interface_has_narrows_nothing(tmp_path: Path, unset: None) -> None:
    assert chosen("192.0.2.77", tmp_path) is None
