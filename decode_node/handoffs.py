"""The handoffs of this decode node, and whose blocks are still being released."""

from collections.abc import Iterator

from twostep.core.ids import RequestId
from twostep.core.ticket import Leg
from twostep.decode_node.handoff import ExpectedLeg, Handoff
from twostep.kv_transfer.handoff_state import HandoffState


class Handoffs:
    """All living handoffs by request id. An id that is releasing keeps its blocks until no copy of it is running."""

    def __init__(self) -> None:
        self._handoffs: dict[RequestId, Handoff] = {}
        self._releasing: set[RequestId] = set()

    def __len__(self) -> int:
        return len(self._handoffs)

    def __iter__(self) -> Iterator[Handoff]:
        return iter(tuple(self._handoffs.values()))

    @property
    def is_empty(self) -> bool:
        """Whether no request is here and none still holds blocks."""
        return not self._handoffs and not self._releasing

    def owners(self) -> frozenset[RequestId]:
        """Return whoever answers for blocks, also for those that are being released. May be called from any thread."""
        return frozenset(self._handoffs) | frozenset(self._releasing)

    def count(self) -> dict[str, int]:
        """Count the handoffs by state."""
        states = [handoff.state for handoff in self]
        return {state.value: states.count(state) for state in HandoffState if state is not HandoffState.FREED}

    def find(self, request: RequestId) -> Handoff | None:
        return self._handoffs.get(request)

    def expecting(self, leg: Leg) -> tuple[Handoff, ExpectedLeg] | None:
        """Return the handoff whose current leg is `leg`, if there is one."""
        handoff = self._handoffs.get(leg.request)
        return (handoff, handoff.leg) if handoff and handoff.leg and handoff.leg.id == leg else None

    def add(self, handoff: Handoff) -> None:
        self._handoffs[handoff.id] = handoff

    def remove(self, handoff: Handoff) -> None:
        """Take the handoff off the table; the id of one that holds blocks is releasing until `released`."""
        del self._handoffs[handoff.id]
        if handoff.reservation:
            self._releasing.add(handoff.id)

    def released(self, request: RequestId) -> None:
        self._releasing.discard(request)

    def awaits_copy(self, handoff: Handoff) -> bool:
        """Return whether a copy of an earlier leg may still be running into blocks of this request."""
        return handoff.id in self._releasing or not handoff.is_quiet

    def unattached_blocks(self) -> int:
        """Return how many KV blocks are held by requests whose KV is not in place yet."""
        return sum(len(handoff.reservation.table) for handoff in self if handoff.reservation and not _decodes(handoff))


def _decodes(handoff: Handoff) -> bool:
    return handoff.state is HandoffState.ATTACHED
