from twostep.core.clock import seconds_until


def test_the_first_moment_decides_if_it_is_near() -> None:
    assert seconds_until((7.0, 5.5), 5.0, at_most=1.0) == 0.5
    assert seconds_until((7.0, 6.5), 5.0, at_most=1.0) == 1.0


def test_what_is_past_is_due_at_once_and_without_moments_the_most_is() -> None:
    assert seconds_until((4.0,), 5.0, at_most=1.0) == 0.0
    assert seconds_until((), 5.0, at_most=1.0) == 1.0
