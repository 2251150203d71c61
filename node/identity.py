"""Who this node is: an id no other node has, a new incarnation for each process, and the address that peers use."""

import os
import secrets
import socket

from twostep.core.ids import NodeId, NodeRef, new_incarnation
from twostep.node.config import NodeConfig

WILDCARDS = frozenset({"", "0.0.0.0", "::", "[::]"})


def new_identity(config: NodeConfig) -> NodeRef:
    """Return the node's name for this life; never made of the listening address, which two pods may share."""
    name = config.node_id or os.environ.get("POD_UID") or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
    return NodeRef(NodeId(name), new_incarnation())


def advertised_host(config: NodeConfig) -> str:
    """Return the host that goes into the addresses given to others."""
    if config.advertise_host:
        return config.advertise_host
    return socket.gethostbyname(socket.gethostname()) if config.host in WILDCARDS else config.host
