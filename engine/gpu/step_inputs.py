"""What a step is computed from, as numbers: filled in on the host, read on the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostep.engine.batch import Chunk
from twostep.engine.gpu.columns import Columns
from twostep.engine.kernels.draw_rows import DrawRows, draw_rows

DRAW_COLUMNS = {
    "keys": torch.int64,
    "temperature": torch.float32,
    "top_k": torch.int32,
    "top_p": torch.float32,
    "least": torch.float32,
}
NO_SLOT = -1
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step's numbers on the device. First come `num_decodes` sequences of one row each, then sequences of several.

    For each row: `tokens` (UNKNOWN_TOKEN: the last one that was drawn in row `feeds` of `RequestRows`), `positions`, `slots`
    of its KV. For each sequence: `rows` of `RequestRows`, `num_keys`; `starts` cut the rows beyond the decodes, from 0 on.
    For each draw: `drawing` (the row; None: all rows draw), `drawers` (the row of `RequestRows`), and how.
    """

    num_decodes: int
    tokens: Tensor
    positions: Tensor
    feeds: Tensor
    slots: Tensor
    rows: Tensor
    num_keys: Tensor
    starts: Tensor | None
    drawing: Tensor | None
    drawers: Tensor
    draws: DrawRows


class DecodeColumns:
    """Steps in which each of up to `num` sequences has one row and draws: for the same memory, step by step."""

    def __init__(self, num: int, block_tokens: int, spare_row: int) -> None:
        integers = dict.fromkeys(("tokens", "positions", "slots", "rows"), torch.int64)
        types = {**integers, "num_keys": torch.int32, **DRAW_COLUMNS}
        self.columns = Columns({name: (dtype, num) for name, dtype in types.items()})
        self._block_tokens = block_tokens
        self._spare_row = spare_row

    def fill(self, memory: Tensor, chunks: Sequence[Chunk], rows: Sequence[int], num_rows: int) -> None:
        """Write the chunks into the first of `num_rows` rows of host memory, and padding into the others.

        A row of padding writes no KV, sees no keys, and draws for nobody.
        """
        views, num, padding = self.columns.views(memory), len(chunks), num_rows - len(chunks)
        _put(views["tokens"], [chunk.tokens[0] for chunk in chunks], [0] * padding)
        _put(views["positions"], [chunk.start for chunk in chunks], [0] * padding)
        _put(views["slots"], [_slot(chunk, chunk.start, self._block_tokens) for chunk in chunks], [NO_SLOT] * padding)
        _put(views["rows"], rows, [self._spare_row] * padding)
        _put(views["num_keys"], [chunk.end for chunk in chunks], [0] * padding)
        draws = draw_rows([*(chunk.draw for chunk in chunks), *[None] * padding])
        for name, column in zip(DRAW_COLUMNS, draws.columns, strict=True):
            views[name][: num + padding] = column

    def inputs(self, memory: Tensor, num_rows: int) -> StepInputs:
        """Return the first rows of `memory`, wherever it is."""
        views = {name: view[:num_rows] for name, view in self.columns.views(memory).items()}
        return StepInputs(
            num_decodes=num_rows,
            tokens=views["tokens"],
            positions=views["positions"],
            feeds=views["rows"],
            slots=views["slots"],
            rows=views["rows"],
            num_keys=views["num_keys"],
            starts=None,
            drawing=None,
            drawers=views["rows"],
            draws=DrawRows(*(views[name] for name in DRAW_COLUMNS)),
        )


@dataclass(frozen=True, slots=True)
class MixedNumbers:
    """The numbers of one step of any shape, in host memory."""

    num_decodes: int
    columns: Columns
    memory: Tensor

    def inputs(self, memory: Tensor) -> StepInputs:
        """Return what a copy of the numbers says, wherever it is."""
        views = self.columns.views(memory)
        return StepInputs(
            num_decodes=self.num_decodes,
            **{name: views[name] for name in ("tokens", "positions", "feeds", "slots", "rows", "num_keys", "starts")},
            drawing=views["drawing"],
            drawers=views["drawers"],
            draws=DrawRows(*(views[name] for name in DRAW_COLUMNS)),
        )


def mixed_numbers(chunks: Sequence[Chunk], rows: Sequence[int], block_tokens: int, spare_row: int) -> MixedNumbers:
    """Return the numbers of a step; `rows` are those of the chunks' requests."""
    lengths = [len(chunk.tokens) for chunk in chunks]
    num_decodes = next((i for i, length in enumerate(lengths) if length > 1), len(lengths))
    ends = list(accumulate(lengths))
    drawing = [(end - 1, row, chunk.draw) for end, row, chunk in zip(ends, rows, chunks, strict=True) if chunk.draw]
    positions = [np.arange(chunk.start, chunk.end) for chunk in chunks]
    slots = [_slots(chunk, places, block_tokens) for chunk, places in zip(chunks, positions, strict=True)]
    draws = draw_rows([draw for _, _, draw in drawing])
    numbers = {
        "tokens": _longs([token for chunk in chunks for token in chunk.tokens]),
        "positions": torch.from_numpy(np.concatenate(positions)),
        "feeds": _longs([*rows[:num_decodes], *[spare_row] * (ends[-1] - num_decodes)]),
        "slots": torch.from_numpy(np.concatenate(slots)),
        "rows": _longs(rows),
        "num_keys": torch.tensor([chunk.end for chunk in chunks], dtype=torch.int32),
        "starts": torch.tensor([0, *accumulate(lengths[num_decodes:])], dtype=torch.int32),
        "drawing": _longs([row for row, _, _ in drawing]),
        "drawers": _longs([row for _, row, _ in drawing]),
        **dict(zip(DRAW_COLUMNS, draws.columns, strict=True)),
    }
    columns = Columns({name: (column.dtype, len(column)) for name, column in numbers.items()})
    memory = columns.new()
    for name, view in columns.views(memory).items():
        view.copy_(numbers[name])
    return MixedNumbers(num_decodes, columns, memory)


def _slot(chunk: Chunk, position: int, block_tokens: int) -> int:
    return chunk.blocks[position // block_tokens] * block_tokens + position % block_tokens


def _slots(chunk: Chunk, positions: Integers, block_tokens: int) -> Integers:
    return np.asarray(chunk.blocks, dtype=np.int64)[positions // block_tokens] * block_tokens + positions % block_tokens


def _put(column: Tensor, numbers: Sequence[int], padding: Sequence[int]) -> None:
    column[: len(numbers) + len(padding)] = torch.tensor([*numbers, *padding], dtype=column.dtype)


def _longs(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)
