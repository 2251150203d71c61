"""What goes wrong before NIXL runs: not installed, not loadable."""

import importlib.util
import sys
from types import ModuleType

import pytest

from twostep.core.errors import ConfigError
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
