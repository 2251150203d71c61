"""What is told of a model that is being loaded."""

import logging

import pytest

from twostep.engine.progress import LOG_EVERY_S, WeightsProgress
from twostep.tests.handoff.clock import ManualClock

GB = 10**9


def test_every_step_is_told_and_the_log_hears_of_some(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "twostep.engine.progress")
    clock, told = ManualClock(), list[str]()
    progress = WeightsProgress(16 * GB, told.append, clock)
    progress.advance(GB)
    clock.advance(LOG_EVERY_S)
    progress.advance(GB)
    progress.advance(2 * GB)
    assert told == [f"loading weights: {done}.0 of 16.0 GB" for done in (1, 2, 4)]
    assert caplog.messages == ["loading weights: 2.0 of 16.0 GB"]
