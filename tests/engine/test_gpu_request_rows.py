"""Rows of the device's tables: each request keeps its own, and of a table only what is new is written."""

import pytest

from twostep.core.ids import BlockId, RequestId
from twostep.engine.batch import Chunk
from twostep.engine.gpu.cpu_device import CpuDevice
from twostep.engine.gpu.rows import RequestRows
from twostep.engine.kernels.twins import TorchKernels


def chunk(name: str, *blocks: int) -> Chunk:
    return Chunk(RequestId(name), (1,), 0, tuple(map(BlockId, blocks)))


def rows_of(max_rows: int) -> RequestRows:
    return RequestRows(CpuDevice(TorchKernels()), max_rows, max_blocks=4)


def test_a_request_keeps_its_row_and_only_new_blocks_are_written() -> None:
    rows = rows_of(3)
    first = rows.place([chunk("a", 7, 8), chunk("b", 9)])
    assert (first.rows, first.changes) == ([0, 1], [(0, 7), (1, 8), (4, 9)])
    second = rows.place([chunk("b", 9, 5), chunk("a", 7, 8)])
    assert (second.rows, second.changes) == ([1, 0], [(5, 5)])


def test_a_table_that_is_another_is_written_anew() -> None:
    rows = rows_of(1)
    rows.place([chunk("a", 7, 8)])
    assert rows.place([chunk("a", 6, 8)]).changes == [(0, 6), (1, 8)]


def test_a_table_that_is_longer_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="a table of 5 blocks: a row has room for 4"):
        rows_of(2).place([chunk("a", 1, 2, 3, 4, 5)])


def test_whoever_was_in_no_batch_for_longest_loses_the_row() -> None:
    rows = rows_of(2)
    rows.place([chunk("a", 1), chunk("b", 2)])
    rows.place([chunk("a", 1)])
    assert rows.place([chunk("c", 3)]).rows == [1]
    assert rows.place([chunk("a", 1), chunk("b", 2)]).rows == [0, 1]


def test_tables_hold_what_was_written_and_padding_has_a_row_of_its_own() -> None:
    rows = rows_of(2)
    rows.write(rows.place([chunk("a", 7, 8), chunk("b", 9)]).changes)
    rows.write(rows.place([chunk("a", 7, 8, 3)]).changes)
    rows.write([])
    assert rows.tables.tolist() == [[7, 8, 3, 0], [9, 0, 0, 0], [0, 0, 0, 0]]
    assert rows.spare == 2
