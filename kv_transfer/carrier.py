"""What has carried a write: TCP, RDMA or memory. UCX chooses and tells nobody; what has been sent, and by whom, tells."""

import enum
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RDMA_FOLDER = Path("/sys/class/infiniband")
OWN_FILES = Path("/proc/self/fd")
BYTES_SENT = 200
"""Where Linux's `struct tcp_info` has `tcpi_bytes_sent`, since 4.19."""
WORD_BYTES = 4
"""In what the counter `port_xmit_data` of an RDMA port counts."""


class Carrier(enum.StrEnum):
    TCP = "tcp"
    RDMA = "rdma"
    MEMORY = "memory"
    """Neither has counted it: memory that both processes share, NVLink, or a device that does not count."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes sent so far: over this process's own TCP connections that are open, and by all RDMA ports that it sees."""

    tcp_bytes: int = 0
    rdma_bytes: int = 0


def carrier_of(before: Traffic, after: Traffic, num_bytes: int) -> Carrier:
    """Return what has carried `num_bytes`, from what was sent while nothing else of that size was.

    TCP is asked first: its counters are this process's own, those of a port are shared by whoever uses it.
    """
    if after.tcp_bytes - before.tcp_bytes >= num_bytes:
        return Carrier.TCP
    return Carrier.RDMA if after.rdma_bytes - before.rdma_bytes >= num_bytes else Carrier.MEMORY


def read_traffic(rdma: Path = RDMA_FOLDER) -> Traffic:
    """Read all counters; takes a fraction of a millisecond for a hundred connections."""
    return Traffic(sum(map(_sent, _own_sockets())), sum(_sent_by_ports(rdma)))


def _own_sockets() -> Iterator[int]:
    for entry in OWN_FILES.iterdir():
        try:
            if entry.readlink().name.startswith("socket:"):
                yield int(entry.name)
        except FileNotFoundError:
            # Closed since the folder was read.
            continue


def _sent(descriptor: int) -> int:
    """Return what a TCP socket has sent; 0 for what is none, or was closed meanwhile by the thread whose it is."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as one:
            if one.type != socket.SOCK_STREAM or one.family not in (socket.AF_INET, socket.AF_INET6):
                return 0
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:
        return 0
    if len(info) < BYTES_SENT + 8:
        return 0
    (sent,) = struct.unpack_from("=Q", info, BYTES_SENT)
    return int(sent)


def _sent_by_ports(rdma: Path) -> Iterator[int]:
    for counter in rdma.glob("*/ports/*/counters/port_xmit_data"):
        try:
            yield WORD_BYTES * int(counter.read_text(encoding="ascii"))
        except (OSError, ValueError):
            # A port that is down, or whose driver does not count.
            continue
