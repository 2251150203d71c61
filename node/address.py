"""Where a node listens, and the file that tells whoever started it."""

import json
from dataclasses import dataclass
from pathlib import Path

from twostep.core.ids import NodeRef


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """The addresses that others use, as `host:port`."""

    node: NodeRef
    role: str
    grpc: str
    metrics: str


def write_address_file(path: Path, address: NodeAddress) -> None:
    """Write the address as JSON, all at once: a reader never sees half a file."""
    text = json.dumps(
        {
            "grpc": address.grpc,
            "metrics": address.metrics,
            "node": address.node.id,
            "incarnation": address.node.incarnation,
        }
    )
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)
