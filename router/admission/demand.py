"""What requests ask of a cluster, and what there is: seconds of computing and tokens of KV, not numbers of requests."""

from dataclasses import dataclass

from twostep.core.ids import RequestId

ServiceClass = tuple[str, int]
"""A tenant, and a priority."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request asks of the cluster: seconds of computing on one node, and tokens of KV until it ends."""

    compute_s: float
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the ready nodes have together. 0 tokens of KV: nobody has told yet, so none are counted."""

    num_computing: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One request that asks to be let in. `deadline` is when it is of no use any more; `mark` tells it when it comes again."""

    request: RequestId
    demand: Demand
    deadline: float
    priority: int = 0
    tenant: str = ""
    mark: int = 0

    @property
    def recognized(self) -> tuple[str, int]:
        return self.tenant, self.mark

    @property
    def service_class(self) -> ServiceClass:
        return self.tenant, self.priority


@dataclass(slots=True)
class DemandSum:
    """The demands of some requests together."""

    compute_s: float = 0.0
    kv_tokens: int = 0
    num_demands: int = 0

    def add(self, demand: Demand) -> None:
        self.compute_s += demand.compute_s
        self.kv_tokens += demand.kv_tokens
        self.num_demands += 1

    def remove(self, demand: Demand) -> None:
        self.num_demands -= 1
        self.kv_tokens -= demand.kv_tokens
        # What is left of many floats added and taken away must not be taken for work.
        self.compute_s = max(0.0, self.compute_s - demand.compute_s) if self.num_demands else 0.0

    def first(self, kv_tokens: int) -> "DemandSum":
        """Return so many tokens of it, with the computing that they take on average; all of it where it has fewer."""
        if kv_tokens >= self.kv_tokens:
            return self
        return DemandSum(self.compute_s * kv_tokens / self.kv_tokens, kv_tokens, self.num_demands)

    def __add__(self, other: "DemandSum") -> "DemandSum":
        return DemandSum(
            self.compute_s + other.compute_s, self.kv_tokens + other.kv_tokens, self.num_demands + other.num_demands
        )


NOTHING = DemandSum()
