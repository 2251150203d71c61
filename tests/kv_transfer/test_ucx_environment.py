"""What UCX is told by whoever runs over it."""

import os

import pytest

from twostep.kv_transfer.ucx_environment import keep_tcp, what_narrows_ucx


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [
        ("", ""),
        ("all", "all"),
        ("^rc", "^rc"),
        ("tcp", "tcp"),
        ("rc,tcp,sm", "rc,tcp,sm"),
        ("sm,self", "sm,self,tcp"),
        ("rc,cuda", "rc,cuda,tcp"),
    ],
)
def test_tcp_stays_among_the_chosen_transports(monkeypatch: pytest.MonkeyPatch, chosen: str, kept: str) -> None:
    monkeypatch.setenv("UCX_TLS", chosen)
    keep_tcp()
    assert os.environ["UCX_TLS"] == kept


def test_what_narrows_it_is_told_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "eth0")
    monkeypatch.setenv("UCX_TLS", "")
    assert what_narrows_ucx() == ("UCX_NET_DEVICES=eth0",)
