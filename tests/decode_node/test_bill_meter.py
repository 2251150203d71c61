from twostep.core.bill import DecodeBill
from twostep.core.ids import RequestId
from twostep.decode_node.bill_meter import BillMeter
from twostep.engine.batch import Chunk


def chunk(start: int, num_tokens: int) -> Chunk:
    return Chunk(RequestId("a"), (0,) * num_tokens, start, ())


def test_each_phase_is_billed_from_its_moment_to_the_next() -> None:
    meter = BillMeter(arrived_at=1.0, granted_at=3.0, done_at=10.0, started_at=10.5, stepped_at=10.75, bytes_landed=64)
    meter.step(chunk(start=100, num_tokens=1), num_prompt_tokens=100)
    assert meter.bill(now=12.5) == DecodeBill(
        queue_s=2.0,
        attach_s=0.5,
        first_step_s=0.25,
        decode_s=2.0,
        num_steps=1,
        cached_tokens=0,
        computed_prompt_tokens=0,
        bytes_landed=64,
    )


def test_a_phase_that_never_came_takes_no_time() -> None:
    assert BillMeter(arrived_at=1.0).bill(now=4.0) == DecodeBill(3.0, 0.0, 0.0, 0.0, 0, 0, 0, 0)


def test_prompt_tokens_that_are_computed_here_are_counted_and_output_tokens_are_not() -> None:
    meter = BillMeter(arrived_at=0.0)
    meter.step(chunk(start=64, num_tokens=30), num_prompt_tokens=90)
    meter.step(chunk(start=94, num_tokens=1), num_prompt_tokens=90)
    assert (meter.num_steps, meter.computed_prompt_tokens) == (2, 26)
