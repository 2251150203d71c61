"""Reads what routers and nodes tell at /metrics, as far as the autoscaler needs it. Pure."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from twostep.autoscaler.seen import NodeCounters, RouterCounters

Samples = Mapping[str, Mapping[frozenset[tuple[str, str]], float]]
ARRIVED = "twostep_router_arrived_prompt_tokens"
HOLDING_KV = ("reserved", "filling", "complete", "attached")
AT_WORK = ("computing", "sending", "awaiting_answer")


def read_routers(text: str) -> Mapping[str, RouterCounters]:
    """Return the counters of each router behind the page, by its worker's number, empty where there is one only.

    Raises ValueError when it is not a router's page.
    """
    samples = _samples(text)
    workers = {dict(labels).get("worker", "") for labels in samples.get(f"{ARRIVED}_count", {})}
    return {worker: _router(_of_worker(samples, worker)) for worker in workers or {""}}


def read_node(text: str) -> NodeCounters:
    """Return a prefill or decode node's counters. Raises ValueError when it is not a node's page."""
    samples = _samples(text)
    bandwidth = "twostep_handoff_bytes_per_second"
    return NodeCounters(
        computed_tokens=_one(samples, "twostep_prompt_tokens_computed_total"),
        cached_tokens=_one(samples, "twostep_cached_tokens_total"),
        decoded_tokens=_one(samples, "twostep_tokens_decoded_total"),
        steps=_one(samples, "twostep_steps_total"),
        step_s=_one(samples, "twostep_step_duration_seconds_sum"),
        handoff_bytes=_one(samples, "twostep_handoff_bytes_total"),
        handoffs=_one(samples, f"{bandwidth}_count"),
        handoff_speed_sum=_one(samples, f"{bandwidth}_sum"),
        queued_tokens=_sum(samples, "twostep_queued_tokens"),
        num_running=_sum(samples, "twostep_reservations", state=HOLDING_KV) + _sum(samples, "twostep_legs", phase=AT_WORK),
        num_waiting=_one(samples, "twostep_queue_length"),
        free_blocks=_sum(samples, "twostep_kv_blocks", state=("free", "cached")),
        total_blocks=_sum(samples, "twostep_kv_blocks"),
    )


def _router(samples: Samples) -> RouterCounters:
    return RouterCounters(
        requests=_one(samples, f"{ARRIVED}_count"),
        prompt_tokens=_one(samples, f"{ARRIVED}_sum"),
        sizes={float(dict(labels)["le"]): count for labels, count in samples[f"{ARRIVED}_bucket"].items()},
        answers=_one(samples, "twostep_router_time_to_first_token_seconds_count"),
        output_tokens=_one(samples, "twostep_router_completion_tokens_total"),
        turned_away=_sum(samples, "twostep_router_requests_total", outcome=("no_ready_node",)),
        waiting=_one(samples, "twostep_router_waiting_requests"),
    )


def _of_worker(samples: Samples, worker: str) -> Samples:
    return {
        name: {labels: value for labels, value in some.items() if dict(labels).get("worker", "") == worker}
        for name, some in samples.items()
    }


def _samples(text: str) -> Samples:
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def _one(samples: Samples, name: str) -> float:
    if name not in samples:
        raise ValueError(f"no metric {name}")
    return sum(samples[name].values())


def _sum(samples: Samples, name: str, **wanted: tuple[str, ...]) -> float:
    """Return the sum of the samples whose labels have one of the wanted values; 0 for a metric that is not there."""
    return sum(
        value
        for labels, value in samples.get(name, {}).items()
        if all(dict(labels).get(label) in values for label, values in wanted.items())
    )
