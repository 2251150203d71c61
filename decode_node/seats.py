"""Who sits at this decode node, and who is still on the way out."""

from collections.abc import Iterator

from twostep.core.ids import RequestId
from twostep.core.ticket import Leg
from twostep.decode_node.seat import ExpectedLeg, Seat
from twostep.kv_transfer.handoff import HandoffState


class Seats:
    """All living seats by request id. A leaving id keeps its blocks until no copy of it is running."""

    def __init__(self) -> None:
        self._seats: dict[RequestId, Seat] = {}
        self._leaving: set[RequestId] = set()

    def __len__(self) -> int:
        return len(self._seats)

    def __iter__(self) -> Iterator[Seat]:
        return iter(tuple(self._seats.values()))

    @property
    def is_empty(self) -> bool:
        """Whether nobody sits here and nobody is leaving."""
        return not self._seats and not self._leaving

    def find(self, request: RequestId) -> Seat | None:
        return self._seats.get(request)

    def expecting(self, leg: Leg) -> tuple[Seat, ExpectedLeg] | None:
        """Return the seat whose current leg is `leg`, if there is one."""
        seat = self._seats.get(leg.request)
        return (seat, seat.leg) if seat and seat.leg and seat.leg.leg == leg else None

    def add(self, seat: Seat) -> None:
        self._seats[seat.id] = seat

    def leave(self, seat: Seat) -> None:
        """Take the seat off the table; its id is leaving until `gone`."""
        del self._seats[seat.id]
        self._leaving.add(seat.id)

    def gone(self, request: RequestId) -> None:
        self._leaving.discard(request)

    def is_leaving(self, request: RequestId) -> bool:
        return request in self._leaving

    def unattached_blocks(self) -> int:
        """Return how many KV blocks are held by requests whose KV is not in place yet."""
        return sum(len(seat.reservation.table) for seat in self if seat.reservation and not _decodes(seat))


def _decodes(seat: Seat) -> bool:
    return seat.state is HandoffState.ATTACHED
