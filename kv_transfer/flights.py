"""Counts the writes in flight to each peer, and tells when nothing moves there any more."""

from dataclasses import dataclass

from twostep.core.clock import Clock
from twostep.core.ids import NodeRef


@dataclass(slots=True)
class _Flight:
    moved_at: float
    num_writes: int = 0


class Flights:
    """Kept by the sender's thread; any other may ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._flights: dict[NodeRef, _Flight] = {}

    def posted(self, peer: NodeRef) -> None:
        self._flights.setdefault(peer, _Flight(self._clock())).num_writes += 1

    def ended(self, peer: NodeRef) -> None:
        flight = self._flights[peer]
        flight.num_writes -= 1
        flight.moved_at = self._clock()
        if not flight.num_writes:
            del self._flights[peer]

    def are_stuck(self, peer: NodeRef, *, for_s: float) -> bool:
        """Return whether writes to `peer` are in flight and none of them, of whichever leg, has ended for so long."""
        flight = self._flights.get(peer)
        return flight is not None and self._clock() - flight.moved_at >= for_s
