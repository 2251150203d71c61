"""The engine's thread, and control calls while it is inside a step. Events, no sleeps."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

import pytest

from twostep.core.errors import EngineFault
from twostep.core.ids import RequestId
from twostep.engine.batch import Batch
from twostep.engine.engine import Engine, StepResult
from twostep.engine.loop import EngineLoop
from twostep.tests.engine.fakes import ONE, ask, build_engine, put

WAIT_S = 20.0


@dataclass(slots=True)
class Gate:
    """Holds every run until it is opened; `entered` tells that one is inside."""

    entered: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def __call__(self, batch: Batch) -> None:
        del batch
        self.entered.set()
        assert self.opened.wait(WAIT_S)


@dataclass(slots=True)
class Heard:
    """What the loop told: steps and faults, in order."""

    steps: SimpleQueue[StepResult] = field(default_factory=SimpleQueue)
    faults: SimpleQueue[EngineFault] = field(default_factory=SimpleQueue)


@contextmanager
def looping(engine: Engine) -> Iterator[Heard]:
    heard = Heard()
    loop = EngineLoop(engine, on_step=heard.steps.put, on_fault=heard.faults.put)
    loop.start()
    try:
        yield heard
    finally:
        assert loop.stop(timeout_s=WAIT_S)


def test_the_loop_steps_when_work_arrives() -> None:
    engine = build_engine()
    with looping(engine) as heard:
        for name in ("a", "b"):
            put(engine, ask(name, range(40), max_tokens=2))
            steps = [heard.steps.get(timeout=WAIT_S) for _ in range(2)]
            assert [event.index for step in steps for event in step.events] == [0, 1]
    assert heard.faults.empty()


def test_the_loop_ends_while_it_waits_for_work() -> None:
    with looping(build_engine()):
        pass


def test_a_request_released_while_it_waits_for_blocks_leaves_the_loop_able_to_go_on() -> None:
    engine = build_engine(num_blocks=4)
    with looping(engine) as heard:
        put(engine, ask("a", range(31), max_tokens=40))
        engine.release(RequestId("a"))
        put(engine, ask("b", range(31), max_tokens=1))
        while not (events := heard.steps.get(timeout=WAIT_S).events) or events[-1].request != "b":
            pass


@pytest.mark.parametrize("error", [EngineFault("the device is gone"), RuntimeError("the device is gone")])
def test_whatever_flies_out_of_a_step_is_an_engine_fault_and_ends_the_loop(error: Exception) -> None:
    def fail(batch: Batch) -> None:
        del batch
        raise error

    engine = build_engine(on_run=fail)
    with looping(engine) as heard:
        put(engine, ask("a", [1]))
        fault = heard.faults.get(timeout=WAIT_S)
    assert "the device is gone" in fault.message
    assert fault is error or fault.__cause__ is error
    assert heard.steps.empty()


def test_a_fault_in_what_listens_to_steps_is_reported_too() -> None:
    def deaf(result: StepResult) -> None:
        raise ValueError(f"cannot hear {len(result.events)} events")

    engine, faults = build_engine(), SimpleQueue[EngineFault]()
    loop = EngineLoop(engine, on_step=deaf, on_fault=faults.put)
    loop.start()
    put(engine, ask("a", [1]))
    assert faults.get(timeout=WAIT_S).message == "ValueError: cannot hear 1 events"
    assert loop.stop(timeout_s=WAIT_S)


def test_control_is_answered_while_a_step_runs() -> None:
    """The step stands still until every kind of control call has been answered."""
    gate = Gate()
    engine = build_engine(on_run=gate)
    engine.reserve(ask("idle", range(40)), growth_tokens=1)
    put(engine, ask("busy", range(40)))
    with looping(engine) as heard:
        assert gate.entered.wait(WAIT_S)
        for name in ("alone", "landed"):
            assert engine.reserve(ask(name, range(40)), growth_tokens=1).cached_tokens == 0
        engine.start(RequestId("alone"), attempt=ONE)
        assert engine.attach(RequestId("landed"), 1, attempt=ONE) is None
        assert engine.release(RequestId("idle"))
        assert engine.release(RequestId("busy"))
        phases = {entry.owner: entry.phase for entry in engine.ledger().entries}
        assert phases == {"busy": "released", "alone": "running", "landed": "running"}
        assert (engine.census().referenced, engine.load().num_running) == (6, 2)
        assert heard.steps.empty()
        gate.opened.set()


def test_a_request_cancelled_during_its_step_gives_its_blocks_back_at_commit() -> None:
    gate = Gate()
    engine = build_engine(on_run=gate)
    put(engine, ask("a", range(40)))
    with looping(engine) as heard:
        assert gate.entered.wait(WAIT_S)
        assert engine.release(RequestId("a"))
        assert engine.census().referenced == 2
        gate.opened.set()
        assert heard.steps.get(timeout=WAIT_S).events == ()
        assert engine.census().referenced == 0


def test_a_request_that_arrives_during_a_step_joins_the_next() -> None:
    gate = Gate()
    engine = build_engine(on_run=gate)
    put(engine, ask("a", range(40), max_tokens=2))
    with looping(engine) as heard:
        assert gate.entered.wait(WAIT_S)
        put(engine, ask("b", range(50, 60)))
        gate.opened.set()
        batches = [heard.steps.get(timeout=WAIT_S).batch for _ in range(2)]
    assert [[chunk.request for chunk in batch.chunks] for batch in batches] == [["a"], ["a", "b"]]
