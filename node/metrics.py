"""A node's metrics, in a registry of its own: several nodes may live in one process."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twostep.engine.step_record import StepRecord

STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BANDWIDTH_BUCKETS = (1e7, 3e7, 1e8, 3e8, 1e9, 3e9, 1e10, 3e10, 1e11)
SHARE_BUCKETS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1.0)
HIGHEST_ATTEMPT = 5
GAP_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FREE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)

Read = Callable[[], Mapping[str, float]]
"""Reads values by label when somebody scrapes; called on the endpoint's thread."""


class NodeMetrics:
    """Counters that the node raises; see docs/metrics.md for what each one means."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.prompt_tokens_computed = self._count("prompt_tokens_computed", "Prompt tokens whose KV this node computed.")
        self.cached_tokens = self._count("cached_tokens", "Prompt tokens found in this node's prefix cache.")
        self.tokens_decoded = self._count("tokens_decoded", "Output tokens drawn by this node.")
        self.preemptions = self._count("preemptions", "Requests that gave their blocks up to be computed again later.")
        self.pauses = self._count("pauses", "Times that a request was paused because nobody took its tokens.", "why")
        self.request_faults = self._count("request_faults", "Requests that failed alone, as by NaN in their logits.")
        self.hopeless = self._count("hopeless", "Requests refused as they could not be answered by their deadlines any more.")
        self.slow_consumers = self._count("slow_consumers", "Requests ended because nobody took their tokens for too long.")
        self.steps = self._count("steps", "Engine steps.")
        self.handoff_bytes = self._count(
            "handoff_bytes", "KV bytes written by this prefill node or landed on this decode node."
        )
        self.handoffs = self._count("handoffs", "Handoffs by outcome.", "outcome")
        self.noop_messages = self._count(
            "noop_messages", "Late, repeated or unknown messages, which changed nothing.", "kind", "why"
        )
        self.refusals = self._count("refusals", "Reservations and prefills that were refused at once, by error.", "code")
        self.attempts = self._count("attempts", "Attempts that got room, by their number; 5 stands for more too.", "number")
        self.integrity_checks = self._count("integrity_checks", "Times that this node recomputed its accounts while idle.")
        self.integrity_violations = self._count("integrity_violations", "Accounts that did not add up.")
        self.preallocation_failures = self._count(
            "preallocation_failures", "Requests that found no room at once, by what was lacking.", "lacking"
        )
        self.queue_bypasses = self._count("queue_bypasses", "Requests admitted before earlier ones that found no room.")
        self.unheard_progress = self._count("unheard_progress", "Progress messages that a peer did not answer.")
        self.asleep_seconds = self._count("asleep_seconds", "Seconds that the timers left out: the process did not run.")
        self.digest_mismatches = self._count("digest_mismatches", "Blocks whose copy never matched its digest.")
        self.prefix_blocks_checked = self._count(
            "prefix_blocks_checked", "Cached blocks that were digested again because a prefill computed from them unsent."
        )
        self.pair_mismatches = self._count(
            "pair_mismatches", "Requests whose copy at a decode node never matched, by where it was spoiled.", "peer", "cause"
        )
        self.step_duration = self._measure("step_duration_seconds", "Duration of an engine step.", STEP_BUCKETS)
        self.step_gap = self._measure(
            "step_gap_seconds", "Between two steps with work for both: what the model waited for.", GAP_BUCKETS
        )
        self.step_requests = self._measure("step_requests", "Requests in an engine step.", BATCH_BUCKETS)
        self.step_token_budget = Gauge(
            "twostep_step_token_budget", "Tokens that the last engine step might have had.", registry=self.registry
        )
        self.reserve_seconds = self._measure(
            "reserve_seconds", "From a reservation's arrival to its grant, queueing included.", STEP_BUCKETS
        )
        self.handoff_bandwidth = self._measure(
            "handoff_bytes_per_second", "Bytes of a handoff by the time with a write in flight.", BANDWIDTH_BUCKETS
        )
        self.hidden_share = self._measure(
            "hidden_share", "Share of a handoff's bytes that were copied in before its prefill ended.", SHARE_BUCKETS
        )
        self.cancel_to_free = self._measure(
            "cancel_to_free_seconds", "From a request's cancellation to its last block free.", FREE_BUCKETS
        )

    def observe_step(self, step: StepRecord) -> None:
        """Count an engine step and what it did."""
        self.steps.inc()
        self.step_duration.observe(step.duration_s)
        if step.gap_s is not None:
            self.step_gap.observe(step.gap_s)
        self.step_requests.observe(step.num_requests)
        self.step_token_budget.set(step.token_budget)
        self.prompt_tokens_computed.inc(step.num_prompt_tokens)
        self.tokens_decoded.inc(step.num_decode_tokens)
        self.preemptions.inc(step.num_preempted)

    def count_attempt(self, number: int) -> None:
        """Count an attempt that got room."""
        self.attempts.labels(str(min(number, HIGHEST_ATTEMPT))).inc()

    def observe(self, name: str, help_text: str, label: str, read: Read) -> None:
        """Publish the gauges `twostep_<name>{<label>=...}` with whatever `read` returns at the time of a scrape."""
        self.registry.register(_ReadAtScrape(GaugeMetricFamily, f"twostep_{name}", help_text, [label], read))

    def observe_value(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Publish the gauge `twostep_<name>`."""
        Gauge(f"twostep_{name}", help_text, registry=self.registry).set_function(read)

    def observe_counts(self, name: str, help_text: str, label: str, read: Read) -> None:
        """Publish the counters `twostep_<name>_total{<label>=...}`, which are kept elsewhere."""
        self.registry.register(_ReadAtScrape(CounterMetricFamily, f"twostep_{name}", help_text, [label], read))

    def observe_count(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Publish the counter `twostep_<name>_total`, which is kept elsewhere."""
        self.registry.register(_ReadAtScrape(CounterMetricFamily, f"twostep_{name}", help_text, [], lambda: {"": read()}))

    def _count(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"twostep_{name}", help_text, labels, registry=self.registry)

    def _measure(self, name: str, help_text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"twostep_{name}", help_text, buckets=buckets, registry=self.registry)


class _ReadAtScrape(Collector):
    def __init__(
        self,
        family: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        help_text: str,
        labels: Sequence[str],
        read: Read,
    ) -> None:
        self._family = family
        self._name = name
        self._help = help_text
        self._labels = labels
        self._read = read

    def collect(self) -> Iterator[Metric]:
        family = self._family(self._name, self._help, labels=self._labels)
        for value, number in self._read().items():
            family.add_metric([value], number)
        yield family
