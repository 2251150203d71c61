"""A node's load under vLLM's names, for gateways and autoscalers that were made to read vLLM's."""

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twostep.engine.engine import Engine
from twostep.node.metrics import NodeMetrics

LABELS = ("model_name", "engine")


def publish_vllm_gauges(metrics: NodeMetrics, engine: Engine, num_queued: Callable[[], int]) -> None:
    """Publish them; `num_queued` counts the requests that wait for memory."""
    metrics.registry.register(_VllmGauges(engine, num_queued))


class _VllmGauges(Collector):
    def __init__(self, engine: Engine, num_queued: Callable[[], int]) -> None:
        self._engine = engine
        self._num_queued = num_queued
        self._labels = (engine.runner.fingerprint.model, "0")

    def collect(self) -> Iterator[Metric]:
        load, blocks = self._engine.load(), self._engine.occupancy()
        yield self._gauge("num_requests_running", "Requests that are being computed.", load.num_running)
        yield self._gauge("num_requests_waiting", "Requests that wait here.", load.num_waiting + self._num_queued())
        yield self._gauge(
            "kv_cache_usage_perc", "Share of the KV blocks that requests hold, 1 for all.", blocks.referenced / blocks.total
        )
        config = {
            "block_size": str(self._engine.runner.kv.layout.block_tokens),
            "num_gpu_blocks": str(blocks.total),
            "model_name": self._labels[0],
            "engine": self._labels[1],
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "The KV cache's configuration.", labels=list(config))
        family.add_metric(list(config.values()), 1.0)
        yield family

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family
