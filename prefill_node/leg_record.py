"""What a prefill node can prove about legs that are not here: whether one may begin, and that no write of it is in flight."""

from collections import OrderedDict

from twostep.core.ids import Generation, NodeRef
from twostep.core.ticket import Leg
from twostep.node.handoff_messages import AbortState


class LegRecord:
    """Remembers the last `capacity` legs that have ended or were refused; of older ones it claims nothing.

    A decode node numbers the loans of its landing space. So all that is forgotten of it lies at or below one number, the
    floor, and a leg above that is either on record or was never here. Such a leg is drained, once it is on record that it
    must not begin.
    """

    def __init__(self, node: NodeRef, capacity: int) -> None:
        self._node = node
        self._capacity = capacity
        self._states: OrderedDict[Leg, tuple[Generation, AbortState]] = OrderedDict()
        self._floors: dict[NodeRef, Generation] = {}

    def __contains__(self, leg: Leg) -> bool:
        """Whether the leg is remembered to have ended or been refused."""
        return leg in self._states

    def meet(self, destination: NodeRef, generation: Generation) -> None:
        """A decode node was met that has lent up to `generation`: those tickets may be of an acquaintance long forgotten."""
        self._floors.setdefault(destination, generation)

    def forget(self, destination: NodeRef) -> None:
        self._floors.pop(destination, None)

    def may_begin(self, leg: Leg, generation: Generation) -> bool:
        """Return whether the leg was certainly never here, nor refused or aborted."""
        floor = self._floors.get(leg.destination)
        return leg.source == self._node and leg not in self._states and floor is not None and generation > floor

    def end(self, leg: Leg, generation: Generation, state: AbortState) -> None:
        """Put down how a leg has ended; what is on record stands."""
        self._states.setdefault(leg, (generation, state))
        if len(self._states) > self._capacity:
            oldest, (forgotten, _) = self._states.popitem(last=False)
            if oldest.destination in self._floors:
                self._floors[oldest.destination] = max(self._floors[oldest.destination], forgotten)

    def refuse(self, leg: Leg, generation: Generation) -> AbortState:
        """Return what is proven about a leg that is not running here; one that was never here never will be."""
        if self.may_begin(leg, generation):
            self.end(leg, generation, AbortState.DRAINED)
            return AbortState.DRAINED
        known = self._states.get(leg)
        return known[1] if known else AbortState.UNKNOWN
