"""Where the last request of each session was served: a hint for the next one. Bounded, oldest first out. Pure."""

from collections import OrderedDict

from twostep.core.ids import NodeRef

MAX_SESSIONS = 65536


class Sessions:
    """Sessions by whatever clients call them; a name from one tenant is not another's."""

    def __init__(self, capacity: int = MAX_SESSIONS) -> None:
        self._capacity = capacity
        self._nodes: OrderedDict[tuple[str, str], frozenset[NodeRef]] = OrderedDict()

    def note(self, tenant: str, session: str, nodes: frozenset[NodeRef]) -> None:
        if not session:
            return
        self._nodes[tenant, session] = nodes
        self._nodes.move_to_end((tenant, session))
        if len(self._nodes) > self._capacity:
            self._nodes.popitem(last=False)

    def nodes(self, tenant: str, session: str) -> frozenset[NodeRef]:
        """Return the nodes that served it; they may be gone."""
        return self._nodes.get((tenant, session), frozenset())
