"""The rows of trace replays: reuse, and how long first and further tokens take, against simpler ways to choose."""

from functools import lru_cache
from pathlib import Path

from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, percentile
from twostep.benchmarks.harness.rows import Measured, Unmeasured
from twostep.benchmarks.placement_rows.constants import CONSTANTS
from twostep.benchmarks.placement_rows.policies import POLICIES
from twostep.benchmarks.placement_rows.replay import Layout, Replay
from twostep.benchmarks.placement_rows.trace import read_trace

QUICK_REQUESTS = 1500
LAYOUTS = {"8 nodes": Layout(0, 8), "6P 2D": Layout(6, 2)}
FIGURES = {"prefix reuse": "share", "TTFT p50": "ms", "TTFT p99": "ms", "TPOT p50": "ms", "TPOT p99": "ms"}
PEERS = {"8 nodes": ("round robin", "least loaded", "prefix only"), "6P 2D": ("round robin",)}


def replays(trace: Path | None) -> list[Measurement]:
    """Return the measurements over `trace`, one for each layout and peer."""
    return [_measurement(trace, layout, peer) for layout, peers in PEERS.items() for peer in peers]


def row_name(figure: str, layout: str, peer: str) -> str:
    """Return the name of a row; those against round robin on eight nodes are the ones that were promised."""
    return f"{figure}, Mooncake conversation trace, {layout}, against {peer}"


def _measurement(trace: Path | None, layout: str, peer: str) -> Measurement:
    rows = tuple(row_name(figure, layout, peer) for figure in FIGURES)

    async def measure(effort: Effort) -> Outcomes:
        if trace is None:
            return dict.fromkeys(rows, Unmeasured("no --trace FILE given"))
        limit = effort.pick(0, QUICK_REQUESTS)
        ours, theirs = figures(trace, layout, "twostep", limit), figures(trace, layout, peer, limit)
        note = f"the first {limit} requests only" if limit else ""
        return {row_name(figure, layout, peer): Measured((ours[figure],), (theirs[figure],), note=note) for figure in FIGURES}

    return Measurement(rows, measure)


@lru_cache
def figures(trace: Path, layout: str, policy: str, limit: int) -> dict[str, float]:
    """Replay the first `limit` requests of a trace, 0 for all; the same run is made once."""
    arrivals = list(read_trace(trace))[: limit or None]
    replay = Replay(arrivals, LAYOUTS[layout], POLICIES[policy], CONSTANTS)
    replay.run()
    served = list(replay.served.values())
    ttft_ms = [1e3 * one.ttft_s for one in served]
    tpot_ms = [1e3 * one.tpot_s for one in served]
    return {
        "prefix reuse": sum(one.cached_tokens for one in served) / sum(one.num_prompt_tokens for one in served),
        "TTFT p50": percentile(ttft_ms, 50),
        "TTFT p99": percentile(ttft_ms, 99),
        "TPOT p50": percentile(tpot_ms, 50),
        "TPOT p99": percentile(tpot_ms, 99),
    }
