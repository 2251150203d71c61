"""Keeps UCX to the interface that this node's address lies on. Whoever reaches its ports can write this process's memory."""

import fcntl
import ipaddress
import logging
import os
import socket
import struct
from pathlib import Path

from twostep.kv_transfer.carrier import RDMA_FOLDER

UCX_DEVICES = "UCX_NET_DEVICES"
GET_ADDRESS = 0x8915
"""Linux's ioctl SIOCGIFADDR, on a `struct ifreq`: a name of 16 bytes, then a `sockaddr_in`."""
log = logging.getLogger(__name__)


def keep_to_interface_of(host: str, rdma: Path = RDMA_FOLDER) -> None:
    """Let UCX use the interface of `host` and every RDMA port in `rdma`, unless the operator has said what it may use."""
    if UCX_DEVICES in os.environ:
        return
    interface = interface_of(host)
    if interface is None:
        log.warning("no interface has this node's IPv4 address: UCX listens on all of them", extra={"host": host})
        return
    ports = sorted(f"{port.parents[1].name}:{port.name}" for port in rdma.glob("*/ports/*"))
    os.environ[UCX_DEVICES] = ",".join([interface, *ports])


def interface_of(host: str) -> str | None:
    """Return the name of the interface with the IPv4 address of `host`, None when there is none."""
    try:
        wanted = ipaddress.IPv4Address(socket.gethostbyname(host))
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        address = _address_of(name)
        if address and (address == wanted or (address.is_loopback and wanted.is_loopback)):
            return name
    return None


def _address_of(interface: str) -> ipaddress.IPv4Address | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, GET_ADDRESS, struct.pack("256s", interface.encode()))
        except OSError:
            return None
    return ipaddress.IPv4Address(answer[20:24])
