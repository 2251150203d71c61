"""The metrics' documentation names exactly what nodes publish."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric

from twostep.autoscaler.metrics import AutoscalerMetrics
from twostep.engine.device_report import DeviceReport
from twostep.node.gauges import observe_device
from twostep.node.metrics import NodeMetrics
from twostep.router.metrics import Metrics
from twostep.tests.handoff.pair import running_pair
from twostep.tests.handoff.phases import reserve
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
WITH_TLS = {"twostep_certificate_end_timestamp_seconds"}
"""Told by nodes that have certificates, and the pair of this test has none."""
OF_A_PROGRAM = {"twostep_kv_path"}
"""Told by whoever chooses a node's transport, and this test's pair is given one."""


def names(families: Iterable[Metric]) -> set[str]:
    return {family.name + ("_total" if family.type == "counter" else "") for family in families}


def documented() -> set[str]:
    return set(re.findall(r"^\| `((?:twostep_|vllm:)\w+)", PAGE.read_text(), re.MULTILINE))


def of_a_router(name: str) -> bool:
    return name.startswith("twostep_router_")


def of_the_autoscaler(name: str) -> bool:
    return name.startswith("twostep_autoscaler_")


async def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        families = [family for node in (pair.prefill, pair.decode) for family in node.parts.metrics.registry.collect()]
    on_a_gpu = NodeMetrics()
    observe_device(on_a_gpu, DeviceReport())
    told = {name for name in documented() if not of_a_router(name) and not of_the_autoscaler(name)}
    assert told == names(families) | names(on_a_gpu.registry.collect()) | WITH_TLS | OF_A_PROGRAM


def test_every_documented_metric_of_the_router_exists() -> None:
    assert set(filter(of_a_router, documented())) <= names(Metrics().registry.collect())


def test_every_metric_of_the_autoscaler_is_documented() -> None:
    assert set(filter(of_the_autoscaler, documented())) == names(AutoscalerMetrics().registry.collect())


async def test_what_was_made_for_vllm_reads_a_nodes_load_and_its_cache() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        engine, registry = pair.decode.parts.engine, pair.decode.parts.metrics.registry
        model = {"model_name": engine.runner.fingerprint.model, "engine": "0"}
        size = {"block_size": str(engine.runner.kv.layout.block_tokens), "num_gpu_blocks": str(engine.runner.kv.num_blocks)}
        assert registry.get_sample_value("vllm:cache_config_info", model | size) == 1.0
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert registry.get_sample_value(f"vllm:{name}", model) == 0.0
        await reserve(pair)
        held = registry.get_sample_value("vllm:kv_cache_usage_perc", model)
        assert held == engine.occupancy().referenced / engine.runner.kv.num_blocks > 0
        assert registry.get_sample_value("vllm:num_requests_waiting", model) == 1.0
