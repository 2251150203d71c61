"""A process with a landing pool and nothing else, driven over stdin and stdout by its test."""

import json
import queue
import sys
import threading
from hashlib import blake2b
from typing import Any

import numpy as np

from twostep.kv_transfer.wires import WIRES
from twostep.tests.kv_transfer.host_memory import region_of
from twostep.tests.kv_transfer.nodes import node


def main(kind: str, name: str, incarnation: int, num_bytes: int) -> None:
    memory = np.zeros(num_bytes, np.uint8)
    transport = WIRES[kind](node(name, incarnation))
    transport.register_landing(region_of(memory))
    answer({"address": memory.ctypes.data, "metadata": transport.metadata().hex()})
    questions: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: [questions.put(line) for line in sys.stdin], daemon=True).start()
    notes: list[str] = []
    while True:
        notes += [note.decode() for note in transport.notifications()]
        try:
            offset, length = json.loads(questions.get(timeout=0.001))
        except queue.Empty:
            continue
        answer({"digest": blake2b(memory[offset : offset + length]).hexdigest(), "notes": notes})


def answer(values: dict[str, Any]) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
