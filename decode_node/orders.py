"""What a router asks of a decode node, and what it is told while it waits."""

from dataclasses import dataclass

from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import Attempt, NodeRef, RouterId
from twostep.core.request import Request, Timing
from twostep.core.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Source:
    """The prefill node that is to fill the blocks."""

    node: NodeRef
    fingerprint: Fingerprint
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class ReserveOrder:
    """A request that wants memory. Without a source this node computes the prompt itself."""

    router: RouterId
    request: Request
    attempt: Attempt
    source: Source | None
    timing: Timing
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Queued:
    """`position` counts those ahead; `estimate_s` is None while nothing is known about the pace."""

    position: int
    estimate_s: float | None


@dataclass(frozen=True, slots=True)
class Granted:
    """Everything is taken. `ticket` is what the prefill node needs; None when this node serves alone."""

    ticket: Ticket | None
    cached_tokens: int
