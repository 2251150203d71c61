"""Keeps the benchmark's shape: its figures are never looked at."""

from twostep.benchmarks.harness.targets import read_targets
from twostep.benchmarks.transport import TRANSPORT
from twostep.benchmarks.transport_rows.writes import SIZES


def test_every_row_is_promised_and_measured_once() -> None:
    rows = [row for measurement in TRANSPORT.measurements for row in measurement.rows]
    assert rows == [target.name for target in read_targets("transport")]


def test_every_size_fills_the_pool_evenly_and_four_kib_to_64_mib_are_covered() -> None:
    assert (min(SIZES.values()), max(SIZES.values())) == (4 << 10, 64 << 20)
    assert [max(SIZES.values()) % size for size in SIZES.values()] == [0] * len(SIZES)
