"""Alerts and dashboards are about metrics that exist, and every alert has its page in the runbook."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import pytest

from twostep.autoscaler.metrics import AutoscalerMetrics
from twostep.node.metrics import NodeMetrics
from twostep.router.metrics import Metrics
from twostep.tests.helm.chart import CHART, template

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
OBSERVED = re.compile(r'observe(?:_value|(_counts?))?\(\s*"(\w+)"')
"""How nodes publish what they read at each scrape."""
METRIC = re.compile(r"\btwostep_[a-z_]+\b(?=[{\[ ])")


SCALED = "nodeDefaults.autoscaling.kind=twostep"


def known_metrics() -> set[str]:
    registries = NodeMetrics().registry, Metrics().registry, AutoscalerMetrics().registry
    counted = {name for registry in registries for name in registry._names_to_collectors}
    sources = [path.read_text() for folder in ("node", "prefill_node", "decode_node") for path in (ROOT / folder).glob("*.py")]
    return counted | {
        f"twostep_{name}{'_total' if counts else ''}" for source in sources for counts, name in OBSERVED.findall(source)
    }


def alerts() -> Iterator[tuple[str, str]]:
    everything = ("monitoring.alerts=true", "monitoring.minPairBytesPerSecond=1", "nodeDefaults.rdma.enabled=true", SCALED)
    [rule] = template(*everything).of("PrometheusRule")
    for one in rule["spec"]["groups"][0]["rules"]:
        yield one["alert"], one["expr"]


def queries() -> Iterator[tuple[str, str]]:
    yield from alerts()
    for path in (CHART / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield panel["title"], target["expr"]
    for kind in ("hpa", "keda"):
        settings = [f"{pools}.default.autoscaling.kind={kind}" for pools in ("prefillPools", "decodePools")]
        for one in template(*settings).of("ScaledObject"):
            yield one["metadata"]["name"], one["spec"]["triggers"][0]["metadata"]["query"]
        for one in template(*settings).of("HorizontalPodAutoscaler"):
            yield one["metadata"]["name"], one["spec"]["metrics"][0]["pods"]["metric"]["name"] + "{"


def test_every_query_is_about_metrics_that_the_programs_publish() -> None:
    known = known_metrics()
    asked = {name: set(METRIC.findall(query)) - known for name, query in queries()}
    assert all(METRIC.search(query) for _, query in queries())
    assert {name: unknown for name, unknown in asked.items() if unknown} == {}


def test_every_query_is_about_this_release_in_its_namespace() -> None:
    for _, query in queries():
        metrics = len(METRIC.findall(query))
        assert query.count('namespace="prod"') in (0, metrics)
        assert query.count("{") >= metrics


def test_prometheus_can_read_every_query() -> None:
    for name, query in queries():
        if not query.endswith("{"):
            assert promql_parser.parse(query.replace("$namespace", "n").replace("$release", "r")), name


def test_every_alert_links_to_its_page_in_the_runbook_and_the_runbook_has_no_others() -> None:
    headings = re.findall(r"^## (Twostep\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(name for name, _ in alerts())


def test_the_dashboards_are_delivered_where_grafana_looks() -> None:
    [boards] = [
        one for one in template("monitoring.dashboards=true").of("ConfigMap") if "dashboards" in one["metadata"]["name"]
    ]
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    for text in boards["data"].values():
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in json.loads(text)["panels"]]
        assert len(places) == len(set(places))
