"""The gauges that both nodes publish: what computes, and who holds the KV blocks."""

from collections.abc import Callable, Mapping

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


def _usage(engine: Engine) -> float:
    census = engine.census()
    return census.referenced / census.total
