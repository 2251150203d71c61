"""What goes wrong before UCX runs: not installed, not loadable, no such device; and what it leaves alone."""

import importlib.util
import os

import pytest

from twostep.core.errors import ConfigError
from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.ucx_transport import UcxTransport
from twostep.kv_transfer.ucx_worker import UcxWorker
from twostep.tests.kv_transfer.needs_ucx import needs_ucx
from twostep.tests.kv_transfer.nodes import node


def test_missing_ucx_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"^UCX is not installed: pip install 'twostep\[ucx\]'[^\n]*$"):
        UcxWorker()


def test_ucx_that_cannot_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(f"{name}: libucp.so.0 is missing")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ConfigError, match=r"^UCX \(ucxx\) is installed but cannot be loaded: [^\n]*$"):
        UcxWorker()


@needs_ucx
def test_a_device_that_is_not_there_is_one_line_that_names_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "nosuch0")
    with pytest.raises(ConfigError, match=r"^UCX_NET_DEVICES=nosuch0: UCX sees no such device here, but lo[^\n]*$"):
        UcxWorker()


@needs_ucx
def test_what_ucxx_tells_ucx_does_not_stay_in_the_environment() -> None:
    UcxWorker().close()
    assert {"UCX_RNDV_THRESH", "UCX_RNDV_FRAG_MEM_TYPE", "UCX_MAX_RNDV_RAILS"} & os.environ.keys() == set()


@needs_ucx
def test_device_memory_is_refused() -> None:
    transport = UcxTransport(node("d"))
    with pytest.raises(ConfigError, match=r"^transport: ucx moves host memory only, [^\n]* VRAM: use nixl$"):
        transport.register_landing(MemoryRegion(1 << 40, 1 << 20, "VRAM"))
    transport.close()
