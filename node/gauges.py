"""The gauges that both nodes publish: what computes, and who holds the KV blocks."""

from collections.abc import Callable, Mapping, Sequence

from twostep.core.ids import RequestId
from twostep.engine.engine import Engine
from twostep.node.metrics import NodeMetrics


def observe_engine(metrics: NodeMetrics, engine: Engine, owners: Callable[[], frozenset[RequestId]]) -> None:
    """Publish what computes, and the block table's census, recomputed at each scrape; `owners` tells who answers for blocks."""

    def blocks() -> Mapping[str, float]:
        census = engine.census()
        return {"free": census.free, "cached": census.cached, "referenced": census.referenced}

    kernels = engine.runner.kernels
    metrics.observe("kernels", "1 for what computes here.", "kernels", lambda: {kernels: 1.0})
    metrics.observe("kv_blocks", "KV blocks by state.", "state", blocks)
    metrics.observe_value("kv_usage_ratio", "Share of the KV blocks that requests hold.", lambda: _usage(engine))
    metrics.observe_value("orphaned_blocks", "KV blocks referenced by nobody alive.", lambda: engine.census(owners).orphaned)


def observe_backlog(metrics: NodeMetrics, engine: Engine, waiting_tokens: Callable[[], Sequence[int]]) -> None:
    """Publish how much is still to be computed; `waiting_tokens` are the prompts of those who wait for memory."""
    metrics.observe_value(
        "queued_tokens",
        "Prompt tokens that are still to be computed here.",
        lambda: engine.load().queued_tokens + sum(waiting_tokens()),
    )


def _usage(engine: Engine) -> float:
    census = engine.census()
    return census.referenced / census.total
