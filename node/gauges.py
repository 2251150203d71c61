"""The gauges that both nodes publish: who holds the KV blocks."""

from collections.abc import Mapping

from twostep.engine.engine import Engine
from twostep.node.metrics import NodeMetrics


def observe_engine(metrics: NodeMetrics, engine: Engine) -> None:
    """Publish the block table's census, recomputed at each scrape."""

    def blocks() -> Mapping[str, float]:
        census = engine.census()
        return {"free": census.free, "cached": census.cached, "referenced": census.referenced}

    metrics.observe("kv_blocks", "KV blocks by state.", "state", blocks)
    metrics.observe_value("kv_usage_ratio", "Share of the KV blocks that requests hold.", lambda: _usage(engine))
    metrics.observe_value("orphaned_blocks", "KV blocks referenced by nobody alive.", lambda: engine.census().orphaned)


def _usage(engine: Engine) -> float:
    census = engine.census()
    return census.referenced / census.total
