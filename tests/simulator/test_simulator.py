"""The cluster under the storms of many seeds; and the simulator itself: that it repeats, and that it sees what it should."""

import subprocess
import sys
from dataclasses import replace

import pytest

from twostep.tests.simulator.scenario import draw
from twostep.tests.simulator.simulation import Result, simulate

NUM_SEEDS = 2000
NUM_LONG_SEEDS = 20_000


def calm(seed: int) -> Result:
    scenario = draw(seed)
    asks = tuple(replace(ask, timeout_s=40.0, leaves_s=None, enough=None) for ask in scenario.asks)
    return simulate(replace(scenario, faults=(), asks=asks))


@pytest.mark.parametrize("seed", range(8))
def test_where_nothing_goes_wrong_every_answer_is_the_oracles(seed: int) -> None:
    result = calm(seed)
    assert result.violations == ()
    assert all(" answered " in client for client in result.clients)


@pytest.mark.parametrize("seed", range(8))
def test_a_seed_repeats_itself_to_the_bit(seed: int) -> None:
    first, second = (simulate(draw(seed), keeps_trace=True) for _ in range(2))
    assert first == second
    assert first.lines


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_no_storm_breaks_a_promise() -> None:
    assert_clean_storm("--seeds", str(NUM_SEEDS))


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(3600)
def test_no_storm_of_many_more_seeds_breaks_a_promise() -> None:
    assert_clean_storm("--seeds", str(NUM_LONG_SEEDS), "--start", str(NUM_SEEDS))


def assert_clean_storm(*options: str) -> None:
    command = [sys.executable, "-m", "twostep.tests.simulator", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
