"""What a router remembers of its own placements."""

from twostep.core.ids import Incarnation, NodeId, NodeRef, RequestId
from twostep.core.request import Request, SamplingParams, ServiceLevel, StopRules
from twostep.router.config import RouterConfig
from twostep.router.metrics import Metrics
from twostep.router.placement.choose import AVOID_NOTHING
from twostep.router.placement.fleet import Fleet
from twostep.router.placement.node_view import NodeView, Typical
from twostep.router.placement.placer import Errand, Placer
from twostep.router.placement.prefix_index import PrefixIndex
from twostep.tests.router.placement.test_choose import NAMING, node, ref


class Town:
    """A placer over some nodes, on a clock that stands."""

    def __init__(self, *nodes: NodeView) -> None:
        self.fleet, self.index, self.now = Fleet(), PrefixIndex(1 << 20), 0.0
        for one in nodes:
            self.index.meet(one.ref, NAMING)
            self.fleet.put(one)
        config = RouterConfig(decode=("d:1",), prefix_memory_s=100.0)
        self.placer = Placer(self.fleet, self.index, Typical, config, Metrics(), lambda: self.now)

    def place(self, *, token: int = 1, session: str = "", tenant: str = "") -> tuple[str, str]:
        request = Request(RequestId("r"), (token,) * 321, SamplingParams(0), StopRules(10), level=ServiceLevel(tenant=tenant))
        placed = self.placer.place(Errand.of(request, session), num_accepted=0, keep=None, avoid=AVOID_NOTHING)
        assert placed.prefill is not None
        return placed.prefill.ref.id, placed.decode.ref.id


def test_a_prompt_that_was_sent_somewhere_is_expected_there_until_that_is_too_long_ago() -> None:
    town = Town(node("p1", 9, ("d1",)), node("p2", 0, ("d1",)), node("d1"))
    assert town.place() == ("p2", "d1")
    town.fleet.put(node("p2", 99, ("d1",)))
    assert town.place() == ("p2", "d1")
    assert town.place(token=2) == ("p1", "d1")
    town.now = 1000.0
    town.fleet.put(node("p1", 9, ("d1",), free_at=1000.0))
    town.fleet.put(node("p2", 99, ("d1",), free_at=1000.1))
    assert town.place() == ("p1", "d1")


def test_a_session_stays_together_among_equals_and_tenants_apart() -> None:
    town = Town(node("p1", 1, ("d1",)), node("p2", 0, ("d1",)), node("d1"))
    assert town.place(token=1, session="s", tenant="acme") == ("p2", "d1")
    town.fleet.put(node("p1", 0, ("d1",)))
    assert town.place(token=2, session="s", tenant="acme") == ("p2", "d1")
    assert town.place(token=3, session="s", tenant="other") == ("p1", "d1")


def test_a_forbidden_pair_stays_forbidden_while_its_nodes_live() -> None:
    town = Town(node("p1", 0, ("d1", "d2")), node("d1"), node("d2", 5))
    town.placer.forbid(ref("p1"), ref("d1"))
    assert town.place() == ("p1", "d2")
    town.fleet.remove(ref("d1"))
    town.placer.forbid(ref("p1"), NodeRef(NodeId("d3"), Incarnation(1)))
    town.fleet.put(node("d1"))
    assert town.place() == ("p1", "d2")
