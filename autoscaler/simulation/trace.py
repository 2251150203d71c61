"""Requests as a trace tells them: when they came, and how long prompt and answer were."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from random import Random

from twostep.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """`at_s` is since the trace's first request; `prompt_tokens` have to be computed: hits of a prefix cache are left out."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path) -> list[TraceRequest]:
    """Return the requests of a trace, in order of time.

    Read are CSV with a head and the columns TIMESTAMP, ContextTokens, GeneratedTokens (Azure's), and JSON lines with
    `timestamp` in milliseconds, `input_length`, `output_length` (Mooncake's). Raises ConfigError.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first = file.readline()
            rows = _json_rows(chain([first], file)) if first.startswith("{") else _csv_rows(first, file)
            found = list(_numbered(path, rows))
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path}: cannot be read: {cause}") from cause
    if not found:
        raise ConfigError(f"{path}: expected requests, found none")
    start_s = min(request.at_s for request in found)
    moved = (TraceRequest(one.at_s - start_s, one.prompt_tokens, one.output_tokens) for one in found)
    return sorted(moved, key=lambda one: one.at_s)


def denser(trace: Sequence[TraceRequest], times: int, *, seed: int = 0, within_s: float = 2.0) -> list[TraceRequest]:
    """Return `times` as many requests in the same time, each within `within_s` of the one that it repeats."""
    draw = Random(seed)
    copies = (
        TraceRequest(max(0.0, one.at_s + draw.uniform(-within_s, within_s) * (copy > 0)), one.prompt_tokens, one.output_tokens)
        for copy in range(times)
        for one in trace
    )
    return sorted(copies, key=lambda one: one.at_s)


def _numbered(path: Path, rows: Iterator[TraceRequest]) -> Iterator[TraceRequest]:
    line = 1
    try:
        for line, row in enumerate(rows, 2):  # noqa: B007 - the error names the line after the last good one
            yield row
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise ConfigError(f"{path}, about line {line + 1}: expected a request of a trace, found {cause}") from cause


def _csv_rows(head: str, lines: Iterator[str]) -> Iterator[TraceRequest]:
    for row in csv.DictReader(chain([head.removeprefix("\ufeff")], lines)):
        # Seven digits after the point are one more than Python reads.
        at_s = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26]).timestamp()
        yield _request(at_s, row["ContextTokens"], row["GeneratedTokens"])


def _json_rows(lines: Iterator[str]) -> Iterator[TraceRequest]:
    for line in lines:
        row = json.loads(line)
        yield _request(row["timestamp"] / 1000, row["input_length"], row["output_length"])


def _request(at_s: float, prompt: str | int, output: str | int) -> TraceRequest:
    request = TraceRequest(at_s, int(prompt), int(output))
    if request.prompt_tokens <= 0 or request.output_tokens <= 0:
        raise ValueError(f"{request.prompt_tokens} prompt tokens and {request.output_tokens} of the answer")
    return request
