"""What each step's record says of it."""

from twostep.engine.engine import Engine
from twostep.engine.step_record import RunTime, RunTimer, StepRecord
from twostep.tests.engine.fakes import ask, build_engine, drain, put
from twostep.tests.handoff.clock import ManualClock


def record(engine: Engine) -> StepRecord:
    result = engine.step()
    assert result is not None
    return result.record


def slow_engine(clock: ManualClock, **knobs: int) -> Engine:
    """An engine whose model takes two seconds for whatever it computes."""
    return build_engine(clock=clock, on_run=lambda _: clock.advance(2.0), **knobs)


def test_a_step_is_recorded_with_its_tokens_by_kind_its_requests_and_its_budget() -> None:
    clock = ManualClock()
    engine = slow_engine(clock, token_budget=40)
    put(engine, ask("a", range(10), max_tokens=3))
    assert record(engine) == StepRecord(1, 0.0, 2.0, None, 1, 0, 10, 0, 0, 40)
    clock.advance(0.5)
    put(engine, ask("b", range(50, 70), max_tokens=1))
    # Steps of two seconds are too long: prompts get their minimum beside the one decode.
    assert record(engine) == StepRecord(2, 2.5, 2.0, 0.5, 2, 1, 20, 0, 0, 33)


def test_time_without_work_is_no_gap() -> None:
    clock = ManualClock()
    engine = slow_engine(clock)
    put(engine, ask("a", range(10), max_tokens=1))
    record(engine)
    assert engine.step() is None
    clock.advance(100.0)
    put(engine, ask("b", range(10), max_tokens=1))
    assert record(engine).gap_s is None


def test_what_the_prefix_cache_held_is_recorded_once() -> None:
    engine = build_engine()
    put(engine, ask("a", range(70), max_tokens=1))
    drain(engine)
    put(engine, ask("b", range(70), max_tokens=2))
    assert [result.record.num_hit_tokens for result in drain(engine)] == [64, 0]


def test_a_preemption_is_recorded_with_the_next_step() -> None:
    engine = build_engine(num_blocks=5)
    put(engine, ask("old", range(31), max_tokens=70))
    put(engine, ask("young", range(40, 70), max_tokens=70))
    results = drain(engine)
    assert [result.record.num_preempted for result in results] == [len(result.preempted) for result in results]
    assert sum(result.record.num_preempted for result in results) == 1
    assert [result.record.number for result in results] == list(range(1, len(results) + 1))


def test_a_timer_measures_runs_and_what_passes_between_them() -> None:
    clock = ManualClock()
    timer = RunTimer(clock)

    def run(duration_s: float) -> RunTime:
        launch = timer.launch()
        clock.advance(duration_s)
        return timer.collected(launch)

    assert run(2.0) == RunTime(0.0, 2.0, None)
    clock.advance(1.0)
    assert run(3.0) == RunTime(3.0, 3.0, 1.0)
    timer.rest()
    clock.advance(50.0)
    assert run(0.0) == RunTime(56.0, 0.0, None)


def test_a_run_launched_while_another_runs_begins_when_that_ends_and_the_device_tells_of_the_gap() -> None:
    clock = ManualClock()
    timer = RunTimer(clock)
    first = timer.launch()
    clock.advance(1.0)
    second, third = timer.launch(), timer.launch()
    clock.advance(1.0)
    assert timer.collected(first, 9.0) == RunTime(0.0, 2.0, None)
    clock.advance(3.0)
    assert timer.collected(second) == RunTime(2.0, 3.0, 0.0)
    clock.advance(1.0)
    assert timer.collected(third, 0.25) == RunTime(5.0, 1.0, 0.25)
