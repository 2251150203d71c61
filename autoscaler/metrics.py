"""The autoscaler's Prometheus metrics; see docs/metrics.md."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from twostep.autoscaler.past import Past
from twostep.autoscaler.plan import ROLES, Plan
from twostep.autoscaler.seen import Phase, Role, Seen


class AutoscalerMetrics:
    """In a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.replicas = self._gauge("replicas", "Nodes that the pool was asked to have.", "role")
        self.needed = self._gauge("needed_nodes", "Nodes that the pool needs.", "role")
        self.target = self._gauge("target_nodes", "Nodes that the pool is to have next.", "role")
        self.pods = self._gauge("pods", "The pool's pods by phase.", "role", "phase")
        self.silent = self._gauge("silent_pods", "Ready pods that do not tell their metrics.", "role")
        self.startup = self._gauge("startup_seconds", "How long a node takes until it is ready, as measured.", "role")
        self.arriving = self._gauge("arriving_prompt_tokens_per_second", "Prompt tokens that arrived lately, each second.")
        self.holding = self._gauge("holding", "1 while nothing may be changed; the log and /plan say why.")
        self.leading = self._gauge("leading", "1 while this autoscaler is the one that acts.")
        self.changes = Counter(
            "twostep_autoscaler_changes", "Changes of a pool's size.", ["role", "direction"], registry=self.registry
        )
        self.failures = Counter(
            "twostep_autoscaler_failures", "Looks or changes that failed, by what failed.", ["what"], registry=self.registry
        )

    def show_seen(self, seen: Seen, past: Past, startup_s: dict[str, float]) -> None:
        for role in ROLES:
            pool = seen.pool(role)
            self.replicas.labels(role).set(pool.replicas)
            self.silent.labels(role).set(len(pool.silent))
            self.startup.labels(role).set(startup_s[role])
            for phase in Phase:
                self.pods.labels(role, phase.value).set(len(pool.of(phase)))
        if past.loads:
            self.arriving.set(past.loads[-1].prompt_tokens_per_s)

    def show_plan(self, plan: Plan) -> None:
        for role in ROLES:
            self.needed.labels(role).set(plan.of(role).need)
            self.target.labels(role).set(plan.of(role).target)

    def count(self, plan: Plan, role: Role) -> None:
        """Count a change that was carried out."""
        self.changes.labels(role, "up" if plan.of(role).target > plan.of(role).replicas else "down").inc()

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"twostep_autoscaler_{name}", text, labels, registry=self.registry)
