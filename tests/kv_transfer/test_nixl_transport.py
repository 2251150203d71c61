"""What goes wrong before NIXL runs: not installed, not loadable, told to do without TCP."""

import importlib.util
import sys
from types import ModuleType

import pytest

from twostep.core.errors import ConfigError
from twostep.kv_transfer import nixl_transport
from twostep.kv_transfer.nixl_transport import NixlTransport
from twostep.tests.kv_transfer.nodes import node


def test_missing_nixl_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"^NIXL is not installed: pip install 'twostep\[node\]'[^\n]*$"):
        NixlTransport(node("d"))


def test_nixl_that_cannot_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "nixl_cu13" else None)
    monkeypatch.setitem(sys.modules, "nixl_cu13", ModuleType("nixl_cu13"))
    with pytest.raises(ConfigError, match=r"^NIXL \(nixl_cu13\) is installed but cannot be loaded: [^\n]*$"):
        NixlTransport(node("d"))


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
    nixl_transport._keep_tcp()
    assert nixl_transport.os.environ["UCX_TLS"] == kept
