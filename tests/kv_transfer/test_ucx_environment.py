"""What UCX is told by whoever runs over it."""

import os

import pytest

from twostep.core.errors import ConfigError
from twostep.kv_transfer.ucx_environment import keep_tcp, require_named_device, what_narrows_ucx


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
    monkeypatch.delenv("UCX_TLS", raising=False)
    assert what_narrows_ucx() == ("UCX_NET_DEVICES=eth0",)


@pytest.mark.parametrize("named", ["all", "eth0", "eth0,absent", "^eth0", "^absent"])
def test_devices_are_named_or_left_out(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", named)
    require_named_device(["eth0", "lo"])


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("absent", "UCX_NET_DEVICES=absent: UCX sees no such device here, but eth0, lo: name one of these"),
        ("^lo,eth0", "UCX_NET_DEVICES=^lo,eth0 leaves UCX no device here: name fewer"),
        ("", "UCX_NET_DEVICES is empty, so that UCX may use no device: unset it, or name one of eth0, lo"),
    ],
)
def test_where_no_device_is_left_one_line_says_which_there_are(
    monkeypatch: pytest.MonkeyPatch, named: str, message: str
) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", named)
    with pytest.raises(ConfigError) as refused:
        require_named_device(["eth0", "lo"])
    assert str(refused.value) == message
