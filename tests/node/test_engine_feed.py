"""How a node sees its engine: readiness from the age of progress, not from the event loop."""

from dataclasses import dataclass
from typing import cast

from twostep.engine.engine import Engine, Load
from twostep.node.engine_feed import EngineFeed
from twostep.node.metrics import NodeMetrics
from twostep.node.readiness import Readiness
from twostep.node.trace import Tracer
from twostep.tests.handoff.clock import ManualClock


@dataclass
class FakeEngine:
    steps: int = 0
    running: int = 0

    def load(self) -> Load:
        return Load(self.steps, self.running, 0, 0)


class Rig:
    def __init__(self) -> None:
        self.engine, self.clock = FakeEngine(), ManualClock()
        feed = EngineFeed(cast(Engine, self.engine), NodeMetrics(), Tracer(self.clock), self.clock)
        self.readiness = Readiness(feed, stall_s=60.0)

    def look_after(self, seconds: float) -> str:
        self.clock.advance(seconds)
        self.readiness.refresh()
        return self.readiness.reason


def test_an_idle_engine_is_ready_for_ever() -> None:
    rig = Rig()
    assert rig.look_after(1000.0) == ""


def test_work_that_comes_after_long_idleness_does_not_look_stalled() -> None:
    rig = Rig()
    rig.look_after(1000.0)
    rig.engine.running = 1
    assert rig.look_after(1.0) == ""


def test_an_engine_with_work_but_without_steps_is_not_ready_until_it_steps_again() -> None:
    rig = Rig()
    rig.engine.running = 1
    rig.look_after(0.0)
    assert rig.look_after(60.0) == ""
    assert rig.look_after(1.0) == "the engine has finished no step for 61 s"
    rig.engine.steps = 1
    assert rig.look_after(1.0) == ""
