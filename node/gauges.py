"""What both nodes publish when they are scraped: what computes, and who holds the KV blocks."""

from collections.abc import Callable, Mapping, Sequence

from twostep.core.ids import RequestId
from twostep.engine.device_report import DeviceReport
from twostep.engine.engine import Engine
from twostep.node.metrics import NodeMetrics


def observe_engine(metrics: NodeMetrics, engine: Engine, owners: Callable[[], frozenset[RequestId]]) -> None:
    """Publish what computes, and the block table's census, recomputed at each scrape; `owners` tells who answers for blocks."""

    def blocks() -> Mapping[str, float]:
        census = engine.census()
        return {"free": census.free, "cached": census.cached, "referenced": census.referenced}

    kernels = engine.runner.kernels
    metrics.observe("kernels", "1 for what computes here.", "kernels", lambda: {kernels: 1.0})
    memory = engine.runner.memory.by_use()
    metrics.observe("memory_bytes", "The memory that was available at the start, by what takes it.", "what", lambda: memory)
    if engine.runner.report:
        observe_device(metrics, engine.runner.report)
    metrics.observe("kv_blocks", "KV blocks by state.", "state", blocks)
    metrics.observe_value("kv_usage_ratio", "Share of the KV blocks that requests hold.", lambda: _usage(engine))
    metrics.observe_value("orphaned_blocks", "KV blocks referenced by nobody alive.", lambda: engine.census(owners).orphaned)


def observe_device(metrics: NodeMetrics, report: DeviceReport) -> None:
    """Publish what a device has counted, and what it took before the first request came."""
    metrics.observe_count("graph_hits", "Steps that were replayed from a captured graph.", lambda: report.graph_hits)
    metrics.observe_counts("graph_misses", "Steps that were not, by reason.", "reason", lambda: dict(report.graph_misses))
    metrics.observe_value("graph_padding_share", "Share of the replayed rows that were padding.", lambda: report.padding_share)
    metrics.observe_value("graph_capture_bytes", "Memory that captured graphs hold.", lambda: report.capture_bytes)
    metrics.observe_value("graph_capture_seconds", "How long capturing took at the start.", lambda: report.capture_s)
    metrics.observe_counts(
        "out_of_memory", "Steps that found no memory, by what became of them.", "outcome", lambda: dict(report.out_of_memory)
    )


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
