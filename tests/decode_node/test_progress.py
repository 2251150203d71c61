import pytest

from twostep.decode_node.progress import ProgressWatch, Sign, is_progress


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, Sign("computing", 0, 7), True),
        (Sign("queued", 3, 7), Sign("queued", 3, 7), True),
        (Sign("queued", 0, 7), Sign("computing", 0, 7), True),
        (Sign("computing", 0, 7), Sign("computing", 0, 8), True),
        (Sign("computing", 0, 7), Sign("computing", 0, 7), False),
        (Sign("computing", 0, 7), Sign("sending", 0, 7), True),
        (Sign("sending", 0, 7), Sign("sending", 0, 9), False),
        (Sign("sending", 0, 7, 100), Sign("sending", 0, 7, 101), True),
        (Sign("sending", 0, 7, 100), Sign("sending", 0, 8, 100), False),
        (Sign("awaiting_answer", 0, 7), Sign("awaiting_answer", 0, 9), False),
    ],
)
def test_queueing_is_progress_computing_needs_a_step_and_sending_needs_bytes(
    before: Sign | None, now: Sign, expected: bool
) -> None:
    assert is_progress(before, now) is expected


def test_a_word_that_tells_nothing_new_does_not_stop_the_watch() -> None:
    watch = ProgressWatch(now=0.0)
    watch.hear(Sign("computing", 0, 1), now=5.0)
    watch.hear(Sign("computing", 0, 1), now=9.0)
    assert watch.idle_s(now=10.0) == 5.0


def test_what_has_landed_is_progress_whatever_p_says() -> None:
    watch = ProgressWatch(now=0.0)
    watch.moved(now=8.0)
    assert watch.idle_s(now=10.0) == 2.0
