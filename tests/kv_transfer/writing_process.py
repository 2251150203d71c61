"""A process that writes units of ones to the landing pool that it is told of on stdin, and polls until it is ended."""

import json
import sys

import numpy as np

from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.transport import PeerLanding
from twostep.kv_transfer.ucx_transport import UcxTransport
from twostep.tests.kv_transfer.host_memory import region_of
from twostep.tests.kv_transfer.nodes import node


def main(num_units: int, unit_bytes: int) -> None:
    memory = np.ones(num_units * unit_bytes, np.uint8)
    transport = UcxTransport(node("p"))
    transport.register_source(region_of(memory), unit_bytes)
    told = json.loads(sys.stdin.readline())
    region = MemoryRegion(told["address"], num_units * unit_bytes)
    transport.connect(PeerLanding(node("d"), bytes.fromhex(told["metadata"]), region, 1))
    units = np.arange(num_units, dtype=np.int32)
    write = transport.post(node("d"), units, units, b"whole")
    print("posted", flush=True)
    while True:
        transport.poll(write) if write in transport._in_flight else transport.notifications()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
