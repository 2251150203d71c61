"""Grafana dashboards, from a list of what each shows: two pages that answer whether it serves, and where time and memory go."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 24
HEIGHT = 8


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph: queries by legend. HERE in a query stands for the labels that the page's variables choose."""

    title: str
    unit: str
    queries: Mapping[str, str]


def quantile(q: float, metric: str) -> str:
    return f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket{{HERE}}[5m])))"


ROUTER = "twostep_router_"
SERVING = [
    Panel("Requests by outcome", "reqps", {"{{outcome}}": f"sum by (outcome) (rate({ROUTER}requests_total{{HERE}}[1m]))"}),
    Panel("In flight", "short", {"{{pod}}": f"sum by (pod) ({ROUTER}in_flight_requests{{HERE}})"}),
    Panel(
        "Time to first token", "s", {f"p{q}": quantile(q / 100, f"{ROUTER}time_to_first_token_seconds") for q in (50, 95, 99)}
    ),
    Panel(
        "Time per output token",
        "s",
        {f"p{q}": quantile(q / 100, f"{ROUTER}time_per_output_token_seconds") for q in (50, 95, 99)},
    ),
    Panel(
        "Tokens",
        "short",
        {
            "prompt": f"sum(rate({ROUTER}prompt_tokens_total{{HERE}}[1m]))",
            "prompt, cached": f"sum(rate({ROUTER}cached_prompt_tokens_total{{HERE}}[1m]))",
            "answered": f"sum(rate({ROUTER}completion_tokens_total{{HERE}}[1m]))",
        },
    ),
    Panel("New attempts", "reqps", {"{{blame}} {{code}}": f"sum by (blame, code) (rate({ROUTER}retries_total{{HERE}}[5m]))"}),
    Panel(
        "Share served by a decode node alone",
        "percentunit",
        {
            "{{reason}}": f"sum by (reason) (rate({ROUTER}bypass_total{{HERE}}[5m]))"
            f" / ignoring(reason) group_left sum(rate({ROUTER}requests_total{{HERE}}[5m]))"
        },
    ),
    Panel("Nodes", "short", {"{{role}}": f"max by (role) ({ROUTER}nodes{{HERE}})"}),
    Panel("Pairs by state", "short", {"{{state}}": f"max by (state) ({ROUTER}pairs{{HERE}})"}),
    Panel("Slowest pair", "Bps", {"{{pod}}": f"min by (pod) ({ROUTER}slowest_pair_bytes_per_second{{HERE}})"}),
    Panel("Discovery out of date", "s", {"{{pod}}": f"max by (pod) ({ROUTER}discovery_stale_seconds{{HERE}})"}),
]
NODES = [
    Panel("KV blocks held by requests", "percentunit", {"{{pod}}": "max by (pod) (twostep_kv_usage_ratio{HERE})"}),
    Panel("Requests that wait for memory", "short", {"{{pod}}": "max by (pod) (twostep_queue_length{HERE})"}),
    Panel(
        "Prompt tokens computed", "short", {"{{pod}}": "sum by (pod) (rate(twostep_prompt_tokens_computed_total{HERE}[1m]))"}
    ),
    Panel("Tokens decoded", "short", {"{{pod}}": "sum by (pod) (rate(twostep_tokens_decoded_total{HERE}[1m]))"}),
    Panel("Step, 95th percentile", "s", {"all": quantile(0.95, "twostep_step_duration_seconds")}),
    Panel("KV handed off", "Bps", {"{{pod}}": "sum by (pod) (rate(twostep_handoff_bytes_total{HERE}[1m]))"}),
    Panel("Handoffs by outcome", "reqps", {"{{outcome}}": "sum by (outcome) (rate(twostep_handoffs_total{HERE}[5m]))"}),
    Panel("Landing pool", "bytes", {"{{state}}": "sum by (state) (twostep_landing_bytes{HERE})"}),
    Panel("Cancel to free, 95th percentile", "s", {"all": quantile(0.95, "twostep_cancel_to_free_seconds")}),
    Panel("Preemptions", "reqps", {"{{pod}}": "sum by (pod) (rate(twostep_preemptions_total{HERE}[5m]))"}),
    Panel("Spoilt copies", "short", {"{{pod}}": "sum by (pod) (increase(twostep_digest_mismatches_total{HERE}[15m]))"}),
    Panel(
        "Nodes: needed, and what they become",
        "short",
        {
            "{{role}}, needed": "max by (role) (twostep_autoscaler_needed_nodes{HERE})",
            "{{role}}, target": "max by (role) (twostep_autoscaler_target_nodes{HERE})",
        },
    ),
    Panel(
        "Changes of pools in an hour",
        "short",
        {"{{role}} {{direction}}": "sum by (role, direction) (increase(twostep_autoscaler_changes_total{HERE}[1h]))"},
    ),
    Panel("Orphaned blocks", "short", {"{{pod}}": "max by (pod) (twostep_orphaned_blocks{HERE})"}),
]
HERE = 'namespace="$namespace", app_kubernetes_io_instance="$release"'


def dashboards() -> dict[str, str]:
    """Return each dashboard's JSON by its name."""
    pages = {"twostep-serving": ("twostep: serving", SERVING), "twostep-nodes": ("twostep: nodes", NODES)}
    return {name: json.dumps(_dashboard(name, title, panels), indent=1) + "\n" for name, (title, panels) in pages.items()}


def _dashboard(name: str, title: str, panels: Sequence[Panel]) -> dict[str, Any]:
    return {
        "uid": name,
        "title": title,
        "tags": ["twostep"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), _variable("namespace", ""), _variable("release", 'namespace="$namespace"')]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(name: str, where: str) -> dict[str, Any]:
    label = "namespace" if name == "namespace" else "app_kubernetes_io_instance"
    metric = f"twostep_router_in_flight_requests{{{where}}}"
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$source"},
        "query": {"query": f"label_values({metric}, {label})", "refId": name},
        "refresh": 2,
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, 2)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "$source"},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "gridPos": {"x": column * WIDTH // 2, "y": row * HEIGHT, "w": WIDTH // 2, "h": HEIGHT},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query.replace("HERE", HERE), "legendFormat": legend}
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }
