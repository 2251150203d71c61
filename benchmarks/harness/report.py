"""Writes a benchmark's result: as a table that is Markdown too, and as JSON with every sample."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from twostep.benchmarks.harness.rows import Measured, Row

HEAD = ("row", "unit", "ours", "peer", "peer is", "ratio (range)", "target", "met")


@dataclass(frozen=True, slots=True)
class Report:
    """One run of one benchmark. `peaks` are what the machine could do in the same run."""

    benchmark: str
    is_quick: bool
    machine: Mapping[str, Any]
    peaks: Mapping[str, float]
    rows: Sequence[Row]
    measured: Mapping[str, Measured]

    def as_json(self) -> str:
        """Return rows as the targets ask for them, each figure to four digits, and beside them what they were made of."""
        told = {
            "benchmark": self.benchmark,
            "quick": self.is_quick,
            "machine": self.machine,
            "peaks": self.peaks,
            "rows": [asdict(row) for row in self.rows],
            "samples": {name: {"ours": one.ours, "peer": one.peer} for name, one in self.measured.items()},
        }
        return json.dumps(_rounded(told), indent=1, ensure_ascii=False) + "\n"

    def as_table(self) -> str:
        """Return the machine, its peaks, the rows, and a line for each row that needs a word."""
        machine = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        peaks = ", ".join(f"{key} {value:.3g}" for key, value in self.peaks.items())
        notes = [f"- {row.name}: {row.note}" for row in self.rows if row.note]
        return "\n".join([f"machine: {machine}", f"peaks: {peaks}", "", *_table(list(map(_cells, self.rows))), "", *notes])


def _cells(row: Row) -> tuple[str, ...]:
    spread = f" ({_figure(row.ratio_range[0])} to {_figure(row.ratio_range[1])})" if row.ratio_range else ""
    return (
        row.name,
        row.unit,
        _figure(row.ours),
        _figure(row.peer),
        row.peer_name or "-",
        _figure(row.ratio) + spread,
        row.target,
        {True: "yes", False: "NO", None: "-"}[row.met],
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    rule = tuple("-" * width for width in widths)
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (HEAD, rule, *rows)
    ]


def _rounded(told: Any) -> Any:
    if isinstance(told, float):
        return float(f"{told:.4g}")
    if isinstance(told, Mapping):
        return {key: _rounded(value) for key, value in told.items()}
    return list(map(_rounded, told)) if isinstance(told, list | tuple) else told
