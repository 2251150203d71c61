"""What has been seen of the cluster at one moment: counters as programs tell them, and pods as Kubernetes does."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class RouterCounters:
    """A router's counters since its start. `sizes` are cumulative counts of requests by bounds of their prompts' tokens."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    sizes: Mapping[float, float] = field(default_factory=dict)
    answers: float = 0.0
    output_tokens: float = 0.0
    turned_away: float = 0.0
    """Requests refused because there were no nodes."""
    waiting: float = 0.0
    """Requests that wait for nodes now; not a counter."""


@dataclass(frozen=True, slots=True)
class NodeCounters:
    """A node's counters since its start and, below `handoff_bytes`, what it has now."""

    computed_tokens: float = 0.0
    cached_tokens: float = 0.0
    decoded_tokens: float = 0.0
    steps: float = 0.0
    step_s: float = 0.0
    handoff_bytes: float = 0.0
    handoffs: float = 0.0
    handoff_speed_sum: float = 0.0
    """Bytes per second, summed over handoffs."""
    queued_tokens: float = 0.0
    num_running: float = 0.0
    """Requests that have KV here."""
    num_waiting: float = 0.0
    """Reservations, or prefills, that wait for memory."""
    free_blocks: float = 0.0
    """Cached blocks included: they can be had at once."""
    total_blocks: float = 0.0


class Phase(enum.Enum):
    """Where a pod stands between its creation and its end."""

    UNSCHEDULABLE = "unschedulable"
    STARTING = "starting"
    READY = "ready"
    UNREADY = "unready"
    """It has been ready, or will not become so by itself."""
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Pod:
    """`age_s` is since its creation; `startup_s` how long it took to be ready, None while it is not."""

    name: str
    uid: str
    phase: Phase
    age_s: float = 0.0
    startup_s: float | None = None
    address: str = ""
    """Where its metrics are, `host:port`; empty while it has none."""
    deletion_cost: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """`replicas` is what its owner was told to have; `counters` by pod uid, of those that answered in time."""

    replicas: int
    pods: Sequence[Pod] = ()
    counters: Mapping[str, NodeCounters] = field(default_factory=dict)

    def of(self, *phases: Phase) -> list[Pod]:
        return [pod for pod in self.pods if pod.phase in phases]

    @property
    def silent(self) -> list[Pod]:
        """Pods that are ready, but have told nothing."""
        return [pod for pod in self.of(Phase.READY) if pod.uid not in self.counters]


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything, at `at_s` on the autoscaler's clock. `routers` by pod uid and worker; `silent_routers` are ready, but did not
    answer."""

    at_s: float
    prefill: Pool
    decode: Pool
    routers: Mapping[str, RouterCounters] = field(default_factory=dict)
    silent_routers: Sequence[str] = ()

    def pool(self, role: Role) -> Pool:
        return self.prefill if role == "prefill" else self.decode
