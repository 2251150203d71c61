"""A decode node that tells, in the file MEMORY_FILE, where its landing pool and its KV blocks lie in its address space."""

import json
import os
from pathlib import Path
from typing import Any

from twostep.core.program import leave, run_program
from twostep.decode_node import program
from twostep.decode_node.config import DecodeNodeConfig
from twostep.decode_node.node import DecodeNode


class TellingNode(DecodeNode):
    """Does nothing else."""

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        regions = {"landing": self._memory.region(), "kv": self.parts.engine.runner.kv.region()}
        told = {name: (region.address, region.num_bytes) for name, region in regions.items()}
        Path(os.environ["MEMORY_FILE"]).write_text(json.dumps(told))


if __name__ == "__main__":
    program.DecodeNode = TellingNode  # type: ignore[misc]
    leave(run_program("telling-decode", "A decode node that tells where its memory is.", DecodeNodeConfig, program.serve))
