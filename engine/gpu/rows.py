"""Which row of the device's tables belongs to which request: its block table, and the token that it drew last."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from twostep.core.ids import BlockId, RequestId
from twostep.engine.batch import Chunk
from twostep.engine.gpu.device import Device


@dataclass(slots=True)
class _Row:
    number: int
    blocks: tuple[BlockId, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """The row of each chunk's request, and the entries that are to be written before its table is right."""

    rows: list[int]
    changes: list[tuple[int, int]]
    """Place in the tables, flat, and block."""


class RequestRows:
    """`tables` int32 [row, block] and `last_tokens` int64 [row] on the device. Of `max_rows` requests the latest have a row.

    The row after theirs, `spare`, is for padding: what is written there is never read for anybody.
    """

    def __init__(self, device: Device, max_rows: int, max_blocks: int) -> None:
        self.spare = max_rows
        self.tables = torch.zeros((max_rows + 1, max_blocks), dtype=torch.int32, device=device.place)
        self.last_tokens = torch.zeros(max_rows + 1, dtype=torch.int64, device=device.place)
        self._device = device
        self._max_blocks = max_blocks
        self._rows: dict[RequestId, _Row] = {}
        self._free = list(reversed(range(max_rows)))

    def place(self, chunks: Sequence[Chunk]) -> Placed:
        """Give each chunk's request a row; whoever was in no batch for longest loses theirs. Nothing is launched yet.

        Raises ValueError for a table that is longer than a row: its end would be written into another request's.
        """
        self._make_room({chunk.request for chunk in chunks})
        rows, changes = [], list[tuple[int, int]]()
        for chunk in chunks:
            # To the end of the line: the first in it was not seen for longest.
            row = self._rows.pop(chunk.request, None) or _Row(self._free.pop())
            self._rows[chunk.request] = row
            if row.blocks != chunk.blocks:
                changes += self._changes(row, chunk.blocks)
                row.blocks = chunk.blocks
            rows.append(row.number)
        return Placed(rows, changes)

    def write(self, changes: Sequence[tuple[int, int]]) -> None:
        """Bring the tables to the device up to date, as work in its order."""
        if changes:
            places, blocks = self._device.send(torch.tensor(changes, dtype=torch.int64).T.contiguous())
            self.tables.view(-1).index_copy_(0, places, blocks.int())

    def _make_room(self, coming: Collection[RequestId]) -> None:
        num_lacking = sum(request not in self._rows for request in coming) - len(self._free)
        if num_lacking > 0:
            for request in [request for request in self._rows if request not in coming][:num_lacking]:
                self._free.append(self._rows.pop(request).number)

    def _changes(self, row: _Row, blocks: tuple[BlockId, ...]) -> list[tuple[int, int]]:
        if len(blocks) > self._max_blocks:
            raise ValueError(f"a table of {len(blocks)} blocks: a row has room for {self._max_blocks}")
        known = len(row.blocks)
        start = known if blocks[:known] == row.blocks else 0
        first = row.number * self._max_blocks
        return [(first + place, blocks[place]) for place in range(start, len(blocks))]
