"""Looks at a running cluster through its router: nodes, pairs, clocks, and one question answered by both pools."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from twostep.cli.checkup.finding import Finding

QUESTION = "What is the capital of France? Answer in one word, then say why you are sure of it, at some length."
MAX_SKEW_S = 5.0

Report = Mapping[str, Any]


def check_cluster(http: httpx.Client) -> Iterator[Finding]:
    """Ask the router at `http`. Yields what it says, or that it does not answer."""
    try:
        reply = http.get("/ready")
        report: Report = reply.json()
        yield _router(report)
        yield _clock(reply.headers.get("date", ""), datetime.now(UTC))
        yield _discovery(report["discovery"])
        yield from (_node(node) for node in report["nodes"])
        yield from _pairs(report)
        yield _answer(http, has_prefill=any(node["role"] == "prefill" for node in report["nodes"]))
    except (httpx.TransportError, ValueError, LookupError) as error:
        advice = "is it running, and is this its address? kubectl get pods, kubectl logs"
        yield Finding("router", f"{http.base_url} does not answer as a router does: {error}", advice)


def _router(report: Report) -> Finding:
    if report["ready"]:
        return Finding("router", f"ready, {report['proven_pairs']} pairs of nodes have exchanged bytes")
    return Finding("router", "not ready: no pair of nodes has exchanged bytes yet", "see what its nodes say below")


def _clock(date: str, now: datetime) -> Finding:
    if not date:
        return Finding("clock", "the router does not tell its time")
    skew_s = abs((parsedate_to_datetime(date) - now).total_seconds())
    advice = "" if skew_s <= MAX_SKEW_S else "set the machines' clocks (NTP): certificates seem not valid yet, or no longer"
    return Finding("clock", f"{skew_s:.0f} s apart from the router's", advice)


def _discovery(report: Report) -> Finding:
    if report["trouble"]:
        return Finding("discovery", f"{report['source']}: {report['trouble']}", "the router goes on with the nodes it knew")
    return Finding("discovery", f"{report['source']} says which nodes there are")


def _node(node: Report) -> Finding:
    subject = f"{node['role']} node {node['node'] or node['address']}"
    if node["ready"]:
        return Finding(subject, "ready")
    return Finding(subject, f"not ready: {node['reason']}", f"look at the log of the pod at {node['address']}")


def _pairs(report: Report) -> Iterator[Finding]:
    for pair in report["pairs"]:
        speed = f"{pair['bytes_per_s'] / 1e9:.2f} GB/s" if pair["bytes_per_s"] else "at a speed nobody has told"
        yield Finding("pair", f"{pair['prefill']} to {pair['decode']}: {pair['path']}, {speed}")
    for node in report["nodes"]:
        if node["role"] == "prefill":
            for peer, state in node["peers"].items():
                if not state.startswith("proven"):
                    yield Finding("pair", f"{node['node']} to {peer}: {state}", _advice_on(state))


def _advice_on(state: str) -> str:
    """Return what to do about a pair that is not proven, from how the prefill node puts it."""
    if "over TCP" in state:
        return "RDMA is not used: twostep doctor in both pods; UCX_NET_DEVICES; rdma.allowTcp in the chart would let it be"
    return "UCX has to get through: UCX_NET_DEVICES, NetworkPolicies, the fabric's partition"


def _answer(http: httpx.Client, *, has_prefill: bool) -> Finding:
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16, "bill": True}
    reply = http.post("/v1/chat/completions", json=body)
    if reply.is_error:
        message = reply.json()["error"]["message"]
        return Finding("answer", f"{reply.status_code}: {message}", "see what the nodes say above")
    bill: Report = reply.json()["bill"]
    if not bill["prefill_node"]:
        advice = "no prefill node was used: see the pairs above" if has_prefill else ""
        return Finding("answer", f"{bill['decode_node']} served alone", advice)
    moved = f"{bill['bytes_moved']:,} bytes of KV moved from {bill['prefill_node']} to {bill['decode_node']}"
    return Finding(
        "answer", f"first token after {bill['ttft'] * 1000:.0f} ms; {moved}", "" if bill["bytes_moved"] else "KV should have"
    )
