"""What a timed node notes, and what follows from the notes of a pair of nodes. Pure but for reading them.

Moments are seconds of the machine's monotonic clock, which all its processes share.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEP, COPY = "step", "copy"


@dataclass(frozen=True, slots=True)
class Span:
    start: float
    end: float

    @property
    def length_s(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Run:
    """The tokens [start, end) of one sequence in a step."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Step:
    """One model run; `groups` are the times in which each layer group was digested and pushed."""

    runs: tuple[Run, ...]
    groups: tuple[Span, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy from the landing pool into KV blocks, digest included."""

    num_bytes: int
    span: Span


Note = Step | Copy


@dataclass(frozen=True, slots=True)
class Handover:
    """One prompt's way from P's engine to D's.

    `kv_written` is when P's last layer was written, `prefill_end` when its first token was drawn, `decode_start` when D's
    first step began; `draw_s` is what the model computed between the first two. `copied` are D's copies-in.
    """

    kv_written: float
    draw_s: float
    prefill_end: float
    decode_start: float
    copied: tuple[Copy, ...]

    def beyond_s(self, wire_s: float) -> float:
        """Return what the handover took beyond what nobody can avoid: moving the last group, or drawing the token."""
        return self.decode_start - self.kv_written - max(wire_s, self.draw_s)

    def hidden_share(self) -> float:
        """Return the share of all bytes that were in D's blocks when P's last layer was written."""
        return sum(copy.num_bytes for copy in self.copied if copy.span.end <= self.kv_written) / self.num_bytes

    @property
    def num_bytes(self) -> int:
        return sum(copy.num_bytes for copy in self.copied)


def read_notes(path: Path, offset: int) -> tuple[list[Note], int]:
    """Return what was noted after `offset` bytes, and how far that went."""
    with path.open("rb") as file:
        file.seek(offset)
        read = file.read()
    whole = read[: read.rfind(b"\n") + 1]
    return [_note(json.loads(line)) for line in whole.splitlines()], offset + len(whole)


def handover_of(prompt_tokens: int, prefill: Sequence[Note], decode: Sequence[Note]) -> Handover:
    """Return the handover of the only prompt in the notes. Raises ValueError when they do not hold one."""
    last = [note for note in prefill if isinstance(note, Step) and any(run.end == prompt_tokens for run in note.runs)]
    first = [note for note in decode if isinstance(note, Step) and any(run.start == prompt_tokens for run in note.runs)]
    if len(last) != 1 or len(first) != 1:
        raise ValueError(f"{len(last)} last prefill steps and {len(first)} first decode steps of {prompt_tokens} tokens")
    taken_up = last[0].groups[-1]
    return Handover(
        kv_written=taken_up.start,
        draw_s=last[0].span.end - taken_up.end,
        prefill_end=last[0].span.end,
        decode_start=first[0].span.start,
        copied=tuple(note for note in decode if isinstance(note, Copy)),
    )


def possible_share(prompt_tokens: int, last_chunk_tokens: int, num_layers: int, block_tokens: int) -> float:
    """Return the share of bytes that could be on D when P writes its last layer: all of it but that layer's last chunk."""
    num_blocks = -(-prompt_tokens // block_tokens)
    last_blocks = num_blocks - (prompt_tokens - last_chunk_tokens) // block_tokens
    return 1 - last_blocks / num_blocks / num_layers


def _note(told: list[Any]) -> Note:
    kind, *values = told
    if kind == COPY:
        return Copy(values[0], Span(*values[1]))
    runs, groups, span = values
    return Step(tuple(Run(*run) for run in runs), tuple(Span(*group) for group in groups), Span(*span))
