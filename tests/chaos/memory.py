"""Reads the memory of a decode node from outside, whether it runs or is frozen."""

import json
from dataclasses import dataclass
from pathlib import Path

from twostep.tests.chaos.programs import Program


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """`file` is what a telling decode node has written."""

    node: Program
    file: Path

    def landing(self) -> bytes:
        return self._read("landing")

    def kv(self) -> bytes:
        return self._read("kv")

    def _read(self, name: str) -> bytes:
        address, num_bytes = json.loads(self.file.read_text())[name]
        with Path(f"/proc/{self.node.pid}/mem").open("rb") as memory:
            memory.seek(address)
            return memory.read(num_bytes)
