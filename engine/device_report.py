"""What a runner on a device tells of itself since its start; see docs/metrics.md."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class DeviceReport:
    """Counts that the engine's thread raises and anybody reads.

    Steps that were replayed from a graph, and by reason those that were not; rows that were replayed, and how many of these
    were padding; steps that found no memory and were `shrunk`, and requests that were `ended` for it. `capture_bytes` and
    `capture_s` are what the graphs took.
    """

    graph_hits: int = 0
    graph_misses: Counter[str] = field(default_factory=Counter)
    graph_rows: int = 0
    padding_rows: int = 0
    out_of_memory: Counter[str] = field(default_factory=Counter)
    capture_bytes: int = 0
    capture_s: float = 0.0

    @property
    def padding_share(self) -> float:
        return self.padding_rows / self.graph_rows if self.graph_rows else 0.0
