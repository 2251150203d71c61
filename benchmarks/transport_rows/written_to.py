"""The side that is written to, as a program: it tells its landing pool on stdout, and polls without rest between two lines of
stdin. Meanwhile it leaves the cores to whoever else is measured."""

import json
import select
import sys

from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.core.memory import HostMemory
from twostep.kv_transfer.wires import WIRES

POOL_BYTES = 64 << 20
TARGET = NodeRef(NodeId("written-to"), Incarnation(1))


def be_written_to(wire: str) -> None:
    memory = HostMemory(POOL_BYTES, "landing")
    memory.bytes[:] = 0
    transport = WIRES[wire](TARGET)
    transport.register_landing(memory.region())
    print(json.dumps({"address": memory.region().address, "metadata": transport.metadata().hex()}), flush=True)
    while sys.stdin.readline():
        while not select.select([sys.stdin], [], [], 0)[0]:
            transport.notifications()
        sys.stdin.readline()
    transport.close()


if __name__ == "__main__":
    be_written_to(sys.argv[1])
