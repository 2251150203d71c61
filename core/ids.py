"""The names things go by: one NewType per kind of id, so that mypy tells them apart."""

import secrets
from typing import NamedTuple, NewType

RequestId = NewType("RequestId", str)
NodeId = NewType("NodeId", str)
RouterId = NewType("RouterId", str)
BlockId = NewType("BlockId", int)
BlockHash = NewType("BlockHash", bytes)
Incarnation = NewType("Incarnation", int)
"""Random 63-bit number drawn at process start: tells a restarted node from the one before it."""
Attempt = NewType("Attempt", int)
"""Counts the prefills of one request, from 1."""
Generation = NewType("Generation", int)
"""Counts the loans of landing space within one incarnation."""


class NodeRef(NamedTuple):
    """One life of one node. A tuple, because routers look nodes up all the time."""

    id: NodeId
    incarnation: Incarnation

    def __str__(self) -> str:
        return f"{self.id}@{self.incarnation:x}"


def new_incarnation() -> Incarnation:
    return Incarnation(secrets.randbits(63))


def new_request_id() -> RequestId:
    return RequestId(f"req-{secrets.token_hex(12)}")
