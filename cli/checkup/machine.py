"""Looks at the machine, or the pod, that it runs on: limits, shared memory, and whether the transport moves bytes."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from twostep.cli.checkup.finding import Finding
from twostep.core.errors import ConfigError, TransferFailed
from twostep.kv_transfer.self_test import move_some_bytes
from twostep.kv_transfer.ucx_environment import what_narrows_ucx
from twostep.kv_transfer.wires import WIRES

MIN_FILES = 4096
MIN_SHARED_BYTES = 256 << 20
RDMA_DEVICES = Path("/dev/infiniband")
SHARED_MEMORY = Path("/dev/shm")


def check_machine(transport: str = "nixl") -> Iterator[Finding]:
    """Look at limits and memory, and whether `transport`, one of WIRES, moves bytes."""
    yield _files()
    yield _shared_memory()
    yield _locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], has_rdma=RDMA_DEVICES.is_dir())
    yield _transport(transport)


def _files() -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    advice = f"raise it (ulimit -n) to {MIN_FILES}: each peer and client takes some" if 0 <= limit < MIN_FILES else ""
    return Finding("open files", f"at most {limit}", advice)


def _shared_memory() -> Finding:
    stat = os.statvfs(SHARED_MEMORY)
    size = stat.f_frsize * stat.f_blocks
    advice = (
        "" if size >= MIN_SHARED_BYTES else f"give it {MIN_SHARED_BYTES >> 20} MiB (sharedMemory in the chart): UCX uses it"
    )
    return Finding("shared memory", f"{size >> 20} MiB in {SHARED_MEMORY}", advice)


def _locked_memory(limit: int, *, has_rdma: bool) -> Finding:
    """RDMA pins the whole KV cache. A process that is not root gets nothing from the capability IPC_LOCK."""
    says = "without limit" if limit == resource.RLIM_INFINITY else f"at most {limit >> 10} KiB"
    if not has_rdma or limit == resource.RLIM_INFINITY:
        return Finding("locked memory", says + ("" if has_rdma else ", and no RDMA device here"))
    advice = "RDMA registers all KV: raise the container runtime's memlock limit to infinity, or let the node run as root"
    return Finding("locked memory", says, advice)


def _transport(name: str) -> Finding:
    told = ", ".join(what_narrows_ucx()) or "UCX chooses by itself"
    try:
        moved = move_some_bytes(WIRES[name])
    except (ConfigError, TransferFailed) as error:
        return Finding("transport", str(error), f"check UCX_TLS and UCX_NET_DEVICES ({told}); UCX_LOG_LEVEL=info says more")
    return Finding(
        "transport", f"{name} moves {moved.bytes_per_s / 1e9:.1f} GB/s within this machine over {moved.carrier} ({told})"
    )
