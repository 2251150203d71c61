"""Turns a batch into the tensors that every layer of one step shares: positions, KV slots, attention groups."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twostep.core.kv_layout import KVLayout
from twostep.engine.batch import Batch, Chunk
from twostep.engine.kernels.reference import KEY_TILE, WHOLE_ROWS

CHUNK_KEYS = KEY_TILE
"""Keys of a chunk come in multiples of this many tokens. With whole tiles a token's result does not depend on how its
prompt was cut."""
DECODE_KEYS = {torch.float32: CHUNK_KEYS, torch.bfloat16: 128}
"""The same for decodes. In bfloat16 with heads of 64, 128 measured as exact as whole tiles, and reads less."""

Masks = Mapping[int | None, Tensor]
"""A mask for each window that the model's layers have; None is the window of those that see everything before them."""


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """Consecutive tokens of one sequence: `rows` of the flat batch, a mask for each window, see `attend_chunk`."""

    rows: slice
    head_blocks: Tensor
    masks: Masks


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Single tokens of sequences whose padded lengths are equal: `rows` [n], masks as in a chunk, see `attend_decodes`."""

    rows: Tensor
    head_blocks: Tensor
    masks: Masks


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step, flat: token `i` of the step stands in row `i`, chunk after chunk, then rows of padding.

    `tokens`, `positions` [row]; `slots` [token * kv_head] are the KV rows to write; `fresh_blocks` are those that this step
    begins and does not fill; `draw_rows` are the rows whose logits are asked for, in the order of their chunks, then
    padding: of `num_tokens` and `num_draws` on, rows mean nothing.
    """

    num_tokens: int
    num_draws: int
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    fresh_blocks: Tensor
    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[ChunkGroup, ...]
    draw_rows: Tensor


class ForwardBatchBuilder:
    """Builds the batches over pools of one layout, on one device, for a model whose layers have these `windows`."""

    def __init__(self, layout: KVLayout, windows: Collection[int | None], dtype: torch.dtype, device: torch.device) -> None:
        self._layout = layout
        self._windows = windows
        self._device = device
        self._decode_keys = DECODE_KEYS[dtype]
        self._heads = torch.arange(layout.num_kv_heads)

    def build(self, batch: Batch) -> ForwardBatch:
        starts = _starts(batch.chunks)
        draws = [start + len(chunk.tokens) - 1 for start, chunk in zip(starts, batch.chunks, strict=True) if chunk.draw]
        return ForwardBatch(
            num_tokens=batch.num_tokens,
            num_draws=len(draws),
            tokens=self._rows([token for chunk in batch.chunks for token in chunk.tokens]),
            positions=self._rows([at for chunk in batch.chunks for at in range(chunk.start, chunk.end)]),
            slots=self._slots(batch.chunks),
            fresh_blocks=self._tensor([block for chunk in batch.chunks for block in self._fresh_blocks(chunk)]),
            decodes=self._decode_groups(batch.chunks, starts),
            chunks=self._chunk_groups(batch.chunks, starts),
            draw_rows=self._rows(draws),
        )

    def _rows(self, values: Sequence[int]) -> Tensor:
        return self._tensor([*values, *[0] * (-len(values) % WHOLE_ROWS)])

    def _tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _slots(self, chunks: Sequence[Chunk]) -> Tensor:
        size = self._layout.block_tokens
        blocks = torch.tensor([chunk.blocks[at // size] for chunk in chunks for at in range(chunk.start, chunk.end)])
        offsets = torch.tensor([at % size for chunk in chunks for at in range(chunk.start, chunk.end)])
        head_blocks = blocks[:, None] * self._layout.num_kv_heads + self._heads
        return (head_blocks * size + offsets[:, None]).flatten().to(self._device)

    def _fresh_blocks(self, chunk: Chunk) -> Sequence[int]:
        """Return the block, if any, that the chunk begins and leaves partly unwritten.

        What an earlier owner left there would be masked in attention, but a NaN passes through any mask.
        """
        size = self._layout.block_tokens
        begun = chunk.end - chunk.end % size
        return [chunk.blocks[begun // size]] if chunk.start <= begun < chunk.end else []

    def _decode_groups(self, chunks: Sequence[Chunk], starts: Sequence[int]) -> tuple[DecodeGroup, ...]:
        by_keys: dict[int, list[int]] = defaultdict(list)
        for index, chunk in enumerate(chunks):
            if len(chunk.tokens) == 1:
                by_keys[_round_up(chunk.end, self._decode_keys)].append(index)
        return tuple(
            DecodeGroup(
                rows=self._tensor([starts[index] for index in members]),
                head_blocks=self._head_blocks([chunks[index] for index in members], num_keys),
                masks=self._masks([chunks[index].start for index in members], num_keys, (1, 1)),
            )
            for num_keys, members in sorted(by_keys.items())
        )

    def _chunk_groups(self, chunks: Sequence[Chunk], starts: Sequence[int]) -> tuple[ChunkGroup, ...]:
        return tuple(self._chunk_group(chunk, row) for chunk, row in zip(chunks, starts, strict=True) if len(chunk.tokens) > 1)

    def _chunk_group(self, chunk: Chunk, row: int) -> ChunkGroup:
        num_keys = _round_up(chunk.end, CHUNK_KEYS)
        padded_end = chunk.start + _round_up(len(chunk.tokens), WHOLE_ROWS)
        return ChunkGroup(
            rows=slice(row, row + len(chunk.tokens)),
            head_blocks=self._head_blocks([chunk], num_keys),
            masks=self._masks(range(chunk.start, padded_end), num_keys),
        )

    def _head_blocks(self, chunks: Sequence[Chunk], num_keys: int) -> Tensor:
        """Return (block, head) numbers [sequence * head * block], each table padded with its own first block."""
        num_blocks = self._layout.num_blocks(num_keys)
        tables = torch.tensor([_padded(chunk.blocks[: self._layout.num_blocks(chunk.end)], num_blocks) for chunk in chunks])
        return (tables[:, None, :] * self._layout.num_kv_heads + self._heads[:, None]).flatten().to(self._device)

    def _masks(self, positions: Sequence[int], num_keys: int, inner: tuple[int, ...] = ()) -> Masks:
        """Return masks [query, *inner, key]: a query at a position sees the last keys up to it. Keys cover whole blocks."""
        keys = torch.arange(self._layout.num_blocks(num_keys) * self._layout.block_tokens, device=self._device)
        queries = self._tensor(positions).view(-1, *inner, 1)
        past = keys <= queries
        return {window: past if window is None else past & (keys > queries - window) for window in self._windows}


def _starts(chunks: Sequence[Chunk]) -> list[int]:
    starts, row = [], 0
    for chunk in chunks:
        starts.append(row)
        row += len(chunk.tokens)
    return starts


def _padded(blocks: Sequence[int], num_blocks: int) -> list[int]:
    return [*blocks, *[blocks[0]] * (num_blocks - len(blocks))]


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
