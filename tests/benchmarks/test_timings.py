from pathlib import Path

import pytest

from twostep.benchmarks.cluster.timings import Copy, Run, Span, Step, handover_of, possible_share, read_notes

PREFILL = [
    Step((Run(0, 512),), (Span(0.1, 0.2), Span(0.3, 0.4)), Span(0.0, 0.5)),
    Step((Run(512, 600),), (Span(0.6, 0.65), Span(0.7, 0.75)), Span(0.5, 1.0)),
]
DECODE = [
    Copy(300, Span(0.3, 0.4)),
    Copy(50, Span(0.65, 0.7)),
    Copy(50, Span(0.8, 0.9)),
    Step((Run(600, 601),), (), Span(1.25, 2.0)),
]


def test_the_handover_runs_from_the_last_layers_kv_to_the_first_decode_step() -> None:
    handover = handover_of(600, PREFILL, DECODE)
    assert (handover.kv_written, handover.prefill_end, handover.decode_start) == (0.7, 1.0, 1.25)
    assert handover.draw_s == pytest.approx(0.25)


@pytest.mark.parametrize(("wire_s", "beyond_s"), [(0.1, 0.3), (0.4, 0.15)])
def test_what_nobody_can_avoid_is_the_longer_of_moving_the_last_group_and_drawing_the_token(
    wire_s: float, beyond_s: float
) -> None:
    assert handover_of(600, PREFILL, DECODE).beyond_s(wire_s) == pytest.approx(beyond_s)


def test_hidden_is_what_was_copied_in_before_the_last_layer_was_written() -> None:
    assert handover_of(600, PREFILL, DECODE).hidden_share() == 350 / 400
    assert possible_share(600, 88, num_layers=2, block_tokens=32) == 1 - 3 / 19 / 2


def test_notes_without_the_prompt_are_refused() -> None:
    with pytest.raises(ValueError, match="0 last prefill steps and 0 first decode steps of 599 tokens"):
        handover_of(599, PREFILL, DECODE)


def test_a_note_that_is_still_being_written_is_read_next_time(tmp_path: Path) -> None:
    path = tmp_path / "decode-0.notes"
    copy, step = b'["copy", 300, [0.3, 0.4]]\n', b'["step", [[600, 601]], [], [1.25, 2.0]]\n'
    path.write_bytes(copy + step[:9])
    notes, offset = read_notes(path, 0)
    path.write_bytes(copy + step)
    assert (notes, read_notes(path, offset)[0]) == ([DECODE[0]], [DECODE[3]])
