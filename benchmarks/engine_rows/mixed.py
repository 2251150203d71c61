"""Prompts of 2k tokens that come into 16 running streams, on all cores, at three token budgets and steered by time."""

from functools import partial

from twostep.benchmarks.cpu_rows.mixed_load import (
    BY_BUDGET_ALONE,
    NUM_STREAMS,
    PROMPT_TOKENS,
    STREAM_TOKENS,
    Latencies,
    MixedLoad,
)
from twostep.benchmarks.cpu_rows.one_engine import OneEngine
from twostep.benchmarks.cpu_rows.vllm_peer import vllm_peer
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, percentile
from twostep.benchmarks.harness.rows import Measured
from twostep.engine.config import SchedulingConfig

BUDGETS = 128, 512, 2048
STEERED = "2k prompts into 16 streams, steps steered by 100 ms a token"
FIGURES = {"TTFT p50": ("ttft_s", 50), "TTFT p99": ("ttft_s", 99), "ITL p50": ("itl_s", 50), "ITL p99": ("itl_s", 99)}


def row(budget: int, figure: str) -> str:
    return f"2k prompts into 16 streams, {budget} tokens a step: {figure}"


async def measure(budget: int, effort: Effort) -> Outcomes:
    engine = OneEngine(token_budget=budget, scheduling=BY_BUDGET_ALONE)
    ours, theirs = [], []
    async with vllm_peer(budget) as peer:
        for _ in range(effort.rounds + 1):
            ours.append(engine.mixed(load(engine, effort)))
            if peer:
                theirs.append(await peer.mixed(load(engine, effort)))
    # The first round warms up.
    return {row(budget, figure): Measured(_figures(figure, ours[1:]), _figures(figure, theirs[1:])) for figure in FIGURES}


async def measure_steered(effort: Effort) -> Outcomes:
    engine = OneEngine(token_budget=BUDGETS[-1], scheduling=SchedulingConfig(tpot_target_s=0.1))
    rounds = [engine.mixed(load(engine, effort)) for _ in range(effort.rounds + 1)][1:]
    return {steered_row(figure): Measured(_figures(figure, rounds)) for figure in STEERED_FIGURES}


def steered_row(figure: str) -> str:
    return f"{STEERED}: {figure}"


def load(engine: OneEngine, effort: Effort) -> MixedLoad:
    return MixedLoad(engine.prompts(NUM_STREAMS, STREAM_TOKENS), engine.prompts(effort.pick(4, 2), PROMPT_TOKENS))


def _figures(figure: str, rounds: list[Latencies]) -> tuple[float, ...]:
    """Return a percentile of each round, in milliseconds."""
    what, percent = FIGURES[figure]
    return tuple(1e3 * percentile(getattr(one, what), percent) for one in rounds)


STEERED_FIGURES = "TTFT p50", "ITL p99"
MIXED_LOADS = [Measurement(tuple(row(budget, figure) for figure in FIGURES), partial(measure, budget)) for budget in BUDGETS]
MIXED_LOADS.append(Measurement(tuple(map(steered_row, STEERED_FIGURES)), measure_steered))
