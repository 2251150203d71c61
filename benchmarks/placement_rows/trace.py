"""Reads a trace of requests whose prompts are named by the hashes of their blocks, and makes tokens of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK_TOKENS = 512
"""What one hash of the trace stands for."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: equal block names begin equal prompts. `at_s` counts from the trace's start."""

    at_s: float
    num_tokens: int
    num_outputs: int
    blocks: tuple[int, ...]

    def prompt(self) -> tuple[int, ...]:
        """Return token ids: a run of each block's name."""
        tokens = [name + 1 for name in self.blocks for _ in range(BLOCK_TOKENS)]
        return tuple(tokens[: self.num_tokens])


def read_trace(path: Path) -> Iterator[Arrival]:
    """Yield the requests in order. Raises ValueError for a line that is none."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            told = json.loads(line)
            try:
                arrival = Arrival(
                    told["timestamp"] / 1000, told["input_length"], told["output_length"], tuple(told["hash_ids"])
                )
            except (KeyError, TypeError) as cause:
                raise ValueError(f"{path}: expected timestamp, input_length, output_length and hash_ids: {cause}") from cause
            yield arrival
