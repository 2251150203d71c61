"""What the autoscaler can be told: the two pools, the targets that they have to keep, and how fast it may act."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from twostep.core.config import Port, Seconds, config

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]


@config
class PoolConfig:
    """One pool of nodes: something with a scale subresource, and the pods that it makes."""

    name: Name
    """The name of the Deployment, StatefulSet or LeaderWorkerSet."""
    kind: Literal["Deployment", "StatefulSet", "LeaderWorkerSet"] = "Deployment"
    """What it is. Only a Deployment lets the pod that has least to lose go first; the others always lose their last one."""
    selector: Annotated[str, Field(min_length=1)]
    """The label selector of its pods; of a LeaderWorkerSet's leaders."""
    port_name: str = "metrics"
    """The name of the port at which a pod tells its metrics."""
    min_nodes: Count = 1
    """The fewest nodes. With 0, which has to be said of both pools, they go to zero together when nothing is asked."""
    max_nodes: Positive
    """The most nodes."""
    gpus_per_node: Positive = 1
    """What one node takes of the shared budget."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_nodes > self.max_nodes:
            raise ValueError(f"min_nodes is {self.min_nodes}, more than max_nodes, {self.max_nodes}")
        return self


@config
class RoutersConfig:
    selector: Annotated[str, Field(min_length=1)]
    """The label selector of the routers' pods."""
    port_name: str = "http"
    """The name of the port at which a router tells its metrics."""
    is_https: bool = False
    """Whether that port is served over TLS. Its certificate is for clients, not for a pod's address, and is not checked."""


@config
class TargetsConfig:
    ttft_s: Seconds = 2.0
    """Time to the first token that prefill nodes are to keep."""
    tpot_s: Seconds = 0.05
    """Time per output token that decode nodes are to keep."""
    attainment: Annotated[float, Field(gt=0, lt=1)] = 0.97
    """The share of requests that are to be served within both."""


@config
class RatesConfig:
    """What a node does until it has been measured; without, nothing is scaled before some requests have been served."""

    prefill_tokens_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Prompt tokens that a busy prefill node computes in a second."""
    decode_step_s: Seconds | None = None
    """How long a decode step takes for hardly any sequences."""
    decode_sequence_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """How much longer a step takes for each sequence in it."""
    startup_s: Seconds = 120.0
    """How long a node takes from its creation until it is ready, until that has been seen."""


@config
class PaceConfig:
    interval_s: Seconds = 15.0
    """How often everything is looked at."""
    hold_s: Seconds = 120.0
    """For how long fewer nodes must have been enough before there are fewer; a node's start-up time where that is longer. In a
    pool so small that one node is more than max_down of it, longer in proportion."""
    max_up: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The largest step up, as a share of the pool; two nodes are always possible."""
    max_down: Annotated[float, Field(gt=0, le=1)] = 0.25
    """The largest step down, as a share of the pool; one node is always possible."""
    max_events_per_hour: Positive = 60
    """So many changes of either pool may be made in any hour. The last quarter of them is kept for growing."""
    unschedulable_s: Seconds = 60.0
    """A pod that no machine has had room for so long is cancelled. More where machines are made on demand."""
    unschedulable_retry_s: Seconds = 300.0
    """For how long after that the pool is not made larger again."""
    idle_s: Seconds = 600.0
    """For how long nothing must have been asked before both pools go to zero, where they may."""
    stale_s: Seconds = 45.0
    """Metrics that are older count as missing."""


@config
class KubernetesConfig:
    namespace: str = ""
    """The namespace of pools and routers; by default the autoscaler's own."""
    kubeconfig: Path | None = None
    """For an autoscaler outside of the cluster; by default the service account that Kubernetes gives to a pod."""
    lease: Name = "twostep-autoscaler"
    """The Lease by which several autoscalers agree on the one that acts."""
    lease_s: Annotated[int, Field(ge=3)] = 30
    """For how long the one that acts may be silent before another takes its place."""


@config
class AutoscalerConfig:
    prefill: PoolConfig
    """The prefill nodes."""
    decode: PoolConfig
    """The decode nodes."""
    routers: RoutersConfig
    """Where requests arrive."""
    targets: TargetsConfig = TargetsConfig()
    """What requests are promised."""
    rates: RatesConfig = RatesConfig()
    """What a node does until it has been measured."""
    max_gpus: Positive | None = None
    """GPUs that both pools may have together; unset: as many as their max_nodes need."""
    pace: PaceConfig = PaceConfig()
    """How fast it acts."""
    kubernetes: KubernetesConfig = KubernetesConfig()
    """Where it acts."""
    dry_run: bool = False
    """Whether decisions are only told, by metrics, log and the page /plan, and never carried out."""
    identity: str = ""
    """This autoscaler's name in the Lease, by default the host's; a random part is added at every start."""
    host: str = "127.0.0.1"
    port: Port = 9091
    """TCP port for /health, /ready, /metrics and /plan; 0 takes any free one."""
    address_file: Path | None = None
    """Where to write `{"http": "host:port"}` as soon as it listens."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        fewest = self.prefill.min_nodes, self.decode.min_nodes
        if (fewest[0] == 0) != (fewest[1] == 0):
            raise ValueError(
                f"prefill.min_nodes is {fewest[0]} and decode.min_nodes {fewest[1]}: both pools go to zero together, or neither"
            )
        if (self.prefill.kind, self.prefill.name) == (self.decode.kind, self.decode.name):
            raise ValueError(f"prefill and decode name the same {self.prefill.kind}, {self.prefill.name}")
        smallest = sum(pool.gpus_per_node * max(1, pool.min_nodes) for pool in (self.prefill, self.decode))
        if self.max_gpus is not None and self.max_gpus < smallest:
            raise ValueError(f"max_gpus is {self.max_gpus}, but the fewest nodes of both pools take {smallest}")
        if (self.rates.decode_step_s is None) != (self.rates.decode_sequence_s is None):
            raise ValueError("rates: decode_step_s and decode_sequence_s belong together, found one of them")
        if self.rates.decode_step_s is not None and self.rates.decode_step_s >= self.targets.tpot_s:
            raise ValueError(
                f"rates.decode_step_s is {self.rates.decode_step_s:g} s: no decode node could keep targets.tpot_s, "
                f"{self.targets.tpot_s:g} s"
            )
        return self

    @property
    def may_sleep(self) -> bool:
        """Whether both pools may go to zero."""
        return self.prefill.min_nodes == 0
