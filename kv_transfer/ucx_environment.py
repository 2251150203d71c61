"""What the environment tells UCX, whichever transport runs over it."""

import logging
import os
import socket
from collections.abc import Collection
from pathlib import Path

from twostep.core.errors import ConfigError
from twostep.kv_transfer.carrier import RDMA_FOLDER

NARROWING = ("UCX_TLS", "UCX_NET_DEVICES")
log = logging.getLogger(__name__)


def what_narrows_ucx() -> tuple[str, ...]:
    """Return the settings that narrow what UCX may choose, such as `UCX_TLS=tcp`."""
    return tuple(f"{name}={os.environ[name]}" for name in NARROWING if name in os.environ)


def network_devices(rdma: Path = RDMA_FOLDER) -> list[str]:
    """Return the names of this machine's interfaces and RDMA ports, as UCX_NET_DEVICES takes them."""
    ports = sorted(f"{port.parents[1].name}:{port.name}" for port in rdma.glob("*/ports/*"))
    return [*(name for _, name in socket.if_nameindex()), *ports]


def require_named_device(seen: Collection[str]) -> None:
    """Raise ConfigError when UCX_NET_DEVICES leaves none of the devices `seen`: it names some, or after a `^` all but some."""
    named, here = os.environ.get("UCX_NET_DEVICES", "all"), ", ".join(seen) or "none"
    names = set(named.removeprefix("^").split(","))
    if not named:
        raise ConfigError(f"UCX_NET_DEVICES is empty, so that UCX may use no device: unset it, or name one of {here}")
    if named.startswith("^") and set(seen) <= names:
        raise ConfigError(f"UCX_NET_DEVICES={named} leaves UCX no device here: name fewer")
    if named != "all" and not named.startswith("^") and not names & set(seen):
        raise ConfigError(f"UCX_NET_DEVICES={named}: UCX sees no such device here, but {here}: name one of these")


def keep_ucx_quiet() -> None:
    """Keep UCX's own log out of stdout, which belongs to the program."""
    os.environ.setdefault("UCX_LOG_FILE", "stderr")


def keep_tcp() -> None:
    """Make sure that UCX may use TCP: without it no peer is reached whose death must show, not even over shared memory."""
    chosen = os.environ.get("UCX_TLS", "")
    names = chosen.split(",")
    if chosen and not chosen.startswith("^") and not {"all", "tcp"} & set(names):
        os.environ["UCX_TLS"] = f"{chosen},tcp"
        log.warning("added tcp to UCX_TLS, no peer is reached without it", extra={"ucx_tls": os.environ["UCX_TLS"]})
