from hypothesis import given
from hypothesis import strategies as st

from twostep.core.awake_clock import AwakeClock
from twostep.tests.handoff.clock import ManualClock


def test_while_ticks_come_in_time_it_is_the_clock_below() -> None:
    below = ManualClock()
    clock = AwakeClock(below, max_gap_s=2.0)
    for _ in range(10):
        below.advance(2.0)
        assert clock.tick() == 0.0
    assert clock() == 20.0


def test_of_a_long_gap_only_so_much_is_counted() -> None:
    below = ManualClock()
    clock = AwakeClock(below, max_gap_s=2.0)
    below.advance(100.0)
    assert clock() == 2.0
    assert clock.tick() == 98.0
    below.advance(1.0)
    assert clock() == 3.0


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans())))
def test_it_never_goes_back_and_never_runs_ahead(moves: list[tuple[int, bool]]) -> None:
    below = ManualClock()
    clock = AwakeClock(below, max_gap_s=5.0)
    seen = clock()
    for advance, ticks in moves:
        before = below.now
        below.advance(advance)
        if ticks:
            clock.tick()
        assert seen <= clock() <= seen + below.now - before
        seen = clock()
