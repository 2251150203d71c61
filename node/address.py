"""Where a node listens, for itself and for whoever started it."""

from dataclasses import dataclass
from typing import Any

from twostep.core.ids import NodeRef


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """The addresses that others use, as `host:port`."""

    node: NodeRef
    role: str
    grpc: str
    metrics: str

    def as_json(self) -> dict[str, Any]:
        return {
            "grpc": self.grpc,
            "metrics": self.metrics,
            "node": self.node.id,
            "incarnation": self.node.incarnation,
        }
