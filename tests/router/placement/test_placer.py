"""What a router remembers of its own placements."""

import logging

import pytest

from twostep.core.ids import Incarnation, NodeId, NodeRef, RequestId
from twostep.core.request import Request, SamplingParams, ServiceLevel, StopRules
from twostep.router.bill import Intake, Timeline, make_bill
from twostep.router.config import RouterConfig
from twostep.router.metrics import Metrics
from twostep.router.placement.choose import AVOID_NOTHING, Placement
from twostep.router.placement.fleet import Fleet
from twostep.router.placement.node_view import NodeView, Typical
from twostep.router.placement.placer import Errand, Found, Placer
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
        self.metrics = Metrics()
        self.placer = Placer(self.fleet, self.index, Typical, config, self.metrics, lambda: self.now)

    def placed(self, *, token: int = 1, session: str = "", tenant: str = "") -> Placement:
        request = Request(RequestId("r"), (token,) * 321, SamplingParams(0), StopRules(10), level=ServiceLevel(tenant=tenant))
        return self.placer.place(Errand.of(request, session), num_accepted=0, keep=None, avoid=AVOID_NOTHING)

    def place(self, *, token: int = 1, session: str = "", tenant: str = "") -> tuple[str, str]:
        placed = self.placed(token=token, session=session, tenant=tenant)
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


def test_a_node_that_does_not_hold_what_it_is_taken_to_hold_is_named_in_the_log_and_in_a_metric(
    caplog: pytest.LogCaptureFixture,
) -> None:
    town = Town(node("p1", 0, ("d1",)), node("d1"))
    bill = make_bill(
        *(Timeline(Intake(0.0)), None, None), num_tokens=1, cached=0, attempts=1, prefill_node="p1", decode_node="d1"
    )
    with caplog.at_level(logging.INFO, "twostep.router.placement.placer"):
        for _ in range(9):
            placement = town.placed()
            town.placer.learn(placement, Found(0, placement.decode_cached_tokens), bill, 1)
    assert placement.cached_tokens == 320
    assert [(record.levelname, record.__dict__["node"]) for record in caplog.records] == [("WARNING", str(ref("p1")))]
    registry = town.metrics.registry
    assert registry.get_sample_value("twostep_router_prefix_alarms_total", {"node": "p1"}) == 1
    assert registry.get_sample_value("twostep_router_prefix_alarms_total", {"node": "d1"}) is None
    assert registry.get_sample_value("twostep_router_prefix_tokens_total", {"what": "missed"}) == 8 * 320
