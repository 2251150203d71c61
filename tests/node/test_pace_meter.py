"""What a node's steps say of its paces."""

import pytest

from twostep.core.ids import BlockId, RequestId
from twostep.core.pace import RatePoint
from twostep.engine.batch import Batch, Chunk
from twostep.engine.engine import StepResult
from twostep.engine.step_record import StepRecord
from twostep.node.pace_meter import PaceMeter


def step(duration_s: float, *, decodes: int = 0, prompts: tuple[tuple[int, int], ...] = ()) -> StepResult:
    """A step of so many decodes and of the prompt parts [start, end)."""
    chunks = [Chunk(RequestId(f"d{number}"), (1,), 100, (BlockId(0),)) for number in range(decodes)]
    chunks += [Chunk(RequestId(f"p{start}"), (1,) * (end - start), start, (BlockId(0),)) for start, end in prompts]
    record = StepRecord(1, 0.0, duration_s, None, len(chunks), decodes, 0, 0, 0, 512)
    return StepResult(Batch(tuple(chunks)), (), (), (), record)


def test_a_step_of_prompts_alone_is_shared_by_their_tokens() -> None:
    meter = PaceMeter()
    meter.take(step(0.3, prompts=((0, 100), (1024, 1224))))
    assert meter.prefill.points == (RatePoint(0, pytest.approx(0.001)), RatePoint(1024, pytest.approx(0.001)))
    assert meter.step.pace is None


def test_of_a_mixed_step_the_prompts_took_what_is_beyond_a_step_that_only_decodes() -> None:
    meter = PaceMeter()
    for decodes in (1, 2, 3):
        meter.take(step(0.01 * decodes, decodes=decodes))
    meter.take(step(0.12, decodes=2, prompts=((0, 100),)))
    assert meter.prefill.points[0].token_s == pytest.approx(0.001)
    assert meter.step.pace is not None
    assert meter.step.pace.step_s(5) == pytest.approx(0.05)
