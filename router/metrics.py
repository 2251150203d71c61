"""The router's Prometheus metrics."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from twostep.router.bill import TTFT_PARTS, Bill

PART_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
TOKEN_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)


class Metrics:
    """One registry per router, so that two of them can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.starts = self._counter(
            "starts", "How often the program has started this router: more than once where a worker died"
        )
        self.requests = self._counter("requests", "Requests by outcome: finish reason, ok or error code", "outcome")
        self.in_flight = self._gauge("in_flight_requests", "Requests being served")
        self.waiting = self._gauge("waiting_requests", "Requests that wait for nodes, there being none that could serve them")
        self.arrived_tokens = self._histogram(
            "arrived_prompt_tokens", "Prompt tokens of each accepted request, counted when it arrives", TOKENS
        )
        self.bypass = self._counter("bypass", "Requests placed on a decode node alone", "reason")
        self.retries = self._counter("retries", "New attempts, by the node blamed and the error", "blame", "code")
        self.retries_refused = self._counter("retries_refused", "New attempts that the budget did not allow, by error", "code")
        self.hedges = self._counter("hedges", "Reservations that got no answer in time: what was done about it", "what")
        self.ignored = self._counter("ignored_messages", "Messages of nodes that were not taken", "why")
        self.missing_bills = self._counter("missing_bills", "Answers that ended before the node's last word", "node")
        self.connections_ended = self._counter("connections_ended", "Connections ended because of their client", "why")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens served")
        self.cached_tokens = self._counter("cached_prompt_tokens", "Prompt tokens that nobody had to compute")
        self.completion_tokens = self._counter("completion_tokens", "Tokens answered")
        self.ttft = self._histogram("time_to_first_token_seconds", "From a request's arrival to its first token", SECONDS)
        parts = Histogram(
            "twostep_router_ttft_part_seconds",
            "The parts of the time to the first token: their sums add up to its sum",
            ("part",),
            buckets=PART_SECONDS,
            registry=self.registry,
        )
        self._ttft_parts = {part: parts.labels(part) for part in TTFT_PARTS}
        self.tpot = self._histogram("time_per_output_token_seconds", "Mean over one answer, without its first", TOKEN_SECONDS)
        self.node_ready = self._gauge("node_ready", "Whether requests may be placed there", "address", "role")
        self.nodes = self._gauge("nodes", "Nodes that discovery names, or that still finish what they have", "role")
        self.discovery_stale = self._gauge(
            "discovery_stale_seconds", "For how long nobody could confirm which nodes there are; 0 while somebody can"
        )
        self.discovery_failures = self._total("discovery_failures", "Failed attempts to find out, since the router started")
        self.certificate_end = self._gauge(
            "certificate_end_timestamp_seconds",
            "When a certificate ends: internal (shown to nodes) or front (to clients)",
            "certificate",
        )
        self.pairs = self._gauge(
            "pairs",
            "Prefill and decode nodes that know each other, by state; requests are placed on proven pairs only",
            "state",
        )
        self.slowest_pair = self._gauge(
            "slowest_pair_bytes_per_second", "What the slowest proven pair's last probe moved; 0 without a proven pair"
        )
        self.queued = self._gauge("queued_requests", "Requests that wait in the router until there is room for them")
        self.queue_wait = self._histogram("queue_wait_seconds", "How long admitted requests waited in the router", SECONDS)
        self.admission_refused = self._counter("admission_refused", "Requests that would have waited too long: 429")
        self.prefix_tokens = self._counter(
            "prefix_tokens",
            "Prompt tokens that were expected in prefix caches, found there, missed (expected only) or unexpected (found only)",
            "what",
        )
        self.prefix_alarms = self._counter(
            "prefix_alarms", "Times that a node turned out not to hold what was expected", "node"
        )
        self.prefix_bytes = self._gauge("prefix_index_bytes", "Memory for what is known of prefix caches, about")
        self.prefix_forgotten = self._total("prefix_index_forgotten", "Blocks at nodes given up because the index was full")
        self.prefix_gaps = self._total("prefix_index_gaps", "How often a node had to tell anew what it holds")

    def observe_ttft(self, bill: Bill) -> None:
        """Count a time to the first token, and each of its parts."""
        self.ttft.observe(bill.ttft)
        for part, histogram in self._ttft_parts.items():
            histogram.observe(getattr(bill, part))

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"twostep_router_{name}_total", text, labels, registry=self.registry)

    def _total(self, name: str, text: str) -> "_Total":
        total = _Total(f"twostep_router_{name}", text)
        self.registry.register(total)
        return total

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"twostep_router_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"twostep_router_{name}", text, buckets=buckets, registry=self.registry)


class _Total(Collector):
    """A counter that is kept elsewhere: it is told how far that is."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._value = 0

    def set(self, value: int) -> None:
        self._value = value

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._text, value=self._value)
