"""What one step computes: for each scheduled sequence, a run of tokens to bring into the KV cache."""

from dataclasses import dataclass

from twostep.core.ids import BlockId, RequestId
from twostep.core.request import SamplingParams

UNKNOWN_TOKEN = -1
"""Stands for what the request's last launched step draws: only the runner knows it as yet."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Asks for the token after a chunk's last one: output number `index` of choice `choice`."""

    sampling: SamplingParams
    index: int
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's part of a step: `tokens` stand at positions `start`, `start + 1`, ...

    `blocks` is the block table from position 0 and covers the chunk's end. Everything before `start` is in the cache, or will
    be when the batches launched before have run. The token of a decode may be UNKNOWN_TOKEN.
    """

    request: RequestId
    tokens: tuple[int, ...]
    start: int
    blocks: tuple[BlockId, ...]
    draw: Draw | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """The chunks of one step, decodes first."""

    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)
