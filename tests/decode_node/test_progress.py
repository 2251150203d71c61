import pytest

from twostep.decode_node.progress import ProgressWatch, Sign, is_progress
from twostep.node.config import Timers

TIMERS = Timers(progress_s=30.0)


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
    watch.hear(Sign("computing", 0, 1), now=25.0)
    assert watch.due_at(TIMERS) == 35.0
    assert not watch.complaint(34.9, TIMERS)
    assert watch.complaint(35.0, TIMERS) == "made no progress for 30 s"


def test_what_has_landed_is_progress_whatever_p_says() -> None:
    watch = ProgressWatch(now=0.0)
    watch.moved(now=8.0)
    assert watch.due_at(TIMERS) == 38.0


def test_who_was_heard_and_falls_silent_is_given_up_before_the_deadline() -> None:
    watch = ProgressWatch(now=0.0)
    watch.hear(Sign("computing", 0, 1), now=5.0)
    assert watch.due_at(TIMERS) == 30.0
    assert not watch.complaint(29.9, TIMERS)
    assert watch.complaint(30.0, TIMERS) == "was silent for 25 s"


def test_whose_ticket_may_still_be_on_its_way_is_not_silent() -> None:
    assert ProgressWatch(now=0.0).due_at(TIMERS) == 30.0
