"""What requests ask of a cluster, and what there is: seconds of computing and tokens of KV, not numbers of requests."""

from dataclasses import dataclass

from twostep.core.ids import RequestId


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


@dataclass(slots=True)
class DemandSum:
    """The demands of some requests together."""

    compute_s: float = 0.0
    kv_tokens: int = 0

    def add(self, demand: Demand) -> None:
        self.compute_s += demand.compute_s
        self.kv_tokens += demand.kv_tokens

    def remove(self, demand: Demand) -> None:
        # What is left of many floats added and taken away must not be taken for work.
        self.kv_tokens -= demand.kv_tokens
        self.compute_s = max(0.0, self.compute_s - demand.compute_s) if self.kv_tokens else 0.0

    def __add__(self, other: "DemandSum") -> "DemandSum":
        return DemandSum(self.compute_s + other.compute_s, self.kv_tokens + other.kv_tokens)


NOTHING = DemandSum()
