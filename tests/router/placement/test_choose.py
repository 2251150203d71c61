"""Which nodes are chosen, what that is expected to take, and what is said when it is not a pair."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from twostep.core.block_news import BlockNews
from twostep.core.errors import NoReadyNode
from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.core.pace import PrefillCurve, RatePoint, StepPace
from twostep.router.placement.choose import AVOID_NOTHING, Avoid, Bypass, Cost, Expected, Placement, choose
from twostep.router.placement.fleet import Fleet
from twostep.router.placement.node_view import Memory, NodeDescription, NodeView
from twostep.router.placement.prefix_index import NO_HITS, Hits, PrefixIndex
from twostep.router.placement.prompt_hashes import Naming, PromptHashes
from twostep.tests.router.fake_nodes import FINGERPRINT, GEOMETRY

NUM_TOKENS = 32 * 10 + 1
PROMPT = PromptHashes(range(NUM_TOKENS))
NAMING = Naming.of(FINGERPRINT, GEOMETRY)
MILLISECOND_A_TOKEN = PrefillCurve((RatePoint(0, 1e-3),))
BOTH = ("d1", "d2")
EXPECTED = Expected(NUM_TOKENS, output_tokens=10)
TOKEN_BYTES = 64
"""KV of one token of the fake nodes: K and V of one layer, one head, eight floats."""


def ref(name: str) -> NodeRef:
    return NodeRef(NodeId(name), Incarnation(1))


def node(name: str, load: int = 0, paths: tuple[str, ...] | Mapping[str, float] = (), **known: Any) -> NodeView:
    """A node that computes a token in a millisecond; `load` counts requests, and on a prefill node as many milliseconds."""
    role = "prefill" if name.startswith("p") else "decode"
    description = NodeDescription(ref(name), role, True, "", "fake", FINGERPRINT, GEOMETRY, "local", "", 400, "")
    speeds = {ref(to): speed for to, speed in (paths if isinstance(paths, Mapping) else dict.fromkeys(paths, 1e9)).items()}
    view = NodeView(description, load, curve=MILLISECOND_A_TOKEN, is_measured=True, paths=speeds)
    return replace(view, **{"free_at": load / 1e3 if role == "prefill" else 0.0, **known})


def place(
    *nodes: NodeView,
    alone: bool = False,
    keep: str = "",
    avoid: Avoid = AVOID_NOTHING,
    hits: Hits = NO_HITS,
    session: str = "",
    expected: Expected = EXPECTED,
) -> Placement:
    fleet = Fleet()
    for one in nodes:
        fleet.put(one)
    kept = ref(keep) if keep else None
    known = frozenset({ref(session)} if session else ())
    candidates = fleet.candidates(hits, may_be_alone=alone, keep=kept, avoid=avoid, session=known)
    return choose(candidates, expected, now=0.0, keep=kept, avoid=avoid)


def chosen(*nodes: NodeView, **how: Any) -> tuple[str | None, str]:
    placement = place(*nodes, **how)
    return placement.prefill.ref.id if placement.prefill else None, placement.decode.ref.id


def held(**num_blocks: int) -> Hits:
    """Return how much of the prompt each node holds, in blocks."""
    index = PrefixIndex(1 << 20)
    for name, count in num_blocks.items():
        index.meet(ref(name), NAMING)
        index.hear(ref(name), BlockNews(0, count, tuple(PROMPT.blocks(NAMING)[:count])))
    return index.match(PROMPT, now=0.0)


def test_the_least_loaded_pair_is_chosen() -> None:
    assert chosen(node("p1", 50, BOTH), node("p2", 10, BOTH), node("d1", 3), node("d2", 1)) == ("p2", "d2")


def test_only_a_pair_that_moved_bytes_is_chosen() -> None:
    assert chosen(node("p1", 50, ("d1",)), node("p2", 10), node("d1", 3), node("d2", 1)) == ("p1", "d1")


def test_the_decode_node_that_holds_the_reservation_is_kept() -> None:
    assert chosen(node("p1", 0, BOTH), node("d1", 9), node("d2", 1), keep="d1") == ("p1", "d1")


def test_a_node_that_failed_is_avoided_while_there_is_another() -> None:
    p1, p2, d1 = node("p1", 0, BOTH), node("p2", 99, BOTH), node("d1")
    avoid = Avoid({ref("p1"): 1})
    assert chosen(p1, p2, d1, avoid=avoid) == ("p2", "d1")
    assert chosen(p1, d1, avoid=avoid) == ("p1", "d1")
    assert chosen(p1, p2, d1, avoid=Avoid({ref("p1"): 2, ref("p2"): 1})) == ("p2", "d1")


def test_a_pair_whose_transfer_failed_is_avoided_while_either_of_its_nodes_can_be_paired_otherwise() -> None:
    p1, p2, d1, d2 = node("p1", 0, BOTH), node("p2", 99, BOTH), node("d1"), node("d2", 5)
    avoid = Avoid(doubtful=frozenset({(ref("p1"), ref("d1"))}))
    assert chosen(p1, p2, d1, d2, keep="d1", avoid=avoid) == ("p2", "d1")
    assert chosen(p1, d1, d2, keep="d1", avoid=avoid) == ("p1", "d2")
    assert chosen(p1, d1, keep="d1", avoid=avoid) == ("p1", "d1")


def test_a_mismatched_pair_is_never_formed_again() -> None:
    avoid = Avoid(mismatched=frozenset({(ref("p1"), ref("d1"))}))
    assert chosen(node("p1", 0, BOTH), node("d1"), node("d2", 5), avoid=avoid) == ("p1", "d2")
    with pytest.raises(NoReadyNode, match="no proven pair"):
        chosen(node("p1", 0, BOTH), node("d1"), avoid=avoid)


def test_each_cost_is_told_in_seconds() -> None:
    p = node("p1", 50, {"d1": 1e4})
    d = node("d1", 3, step=StepPace(0.01, 0.001), memory=Memory(available=4, total=10, wanted=1, hold_s=6.0))
    placement = place(p, d, hits=held(p1=4, d1=2), expected=replace(EXPECTED, pair_overhead_s=0.02))
    prefill_s, transfer_s = (NUM_TOKENS - 128) / 1e3, (NUM_TOKENS - 64) * TOKEN_BYTES / 1e4
    assert placement.cost == Cost(
        queue=0.05,
        prefill=pytest.approx(prefill_s),
        transfer=pytest.approx(max(transfer_s, transfer_s - prefill_s)),
        overhead=0.02,
        room=pytest.approx((10 + 1 - 4) * 6.0 / 6),
        decode=pytest.approx(10 * (0.01 + 0.004 + 0.003)),
    )
    assert (placement.cached_tokens, placement.decode_cached_tokens) == (128, 64)
    assert placement.prefill_work.tokens == NUM_TOKENS - 128
    assert placement.decode_work.blocks == 10


def test_the_node_that_holds_the_prefix_is_worth_a_queue_as_long_as_what_it_saves() -> None:
    p1, p2 = node("p1", 200, ("d1",)), node("p2", 0, ("d1",))
    assert chosen(p1, p2, node("d1"), hits=held(p1=7)) == ("p1", "d1")
    assert chosen(p1, p2, node("d1"), hits=held(p1=6)) == ("p2", "d1")


def test_a_prefix_that_everybody_waits_for_spreads() -> None:
    p1, p2 = node("p1", 101, ("d1",)), node("p2", 0, ("d1",))
    hits = held(p1=10)
    assert chosen(p1, p2, node("d1"), hits=hits) == ("p1", "d1")
    assert chosen(p1, p2, node("d1"), hits=hits, expected=replace(EXPECTED, spread_s=0.1)) == ("p2", "d1")


def test_where_all_are_as_busy_a_prefix_does_not_spread() -> None:
    p1, p2 = node("p1", 900, ("d1",)), node("p2", 850, ("d1",))
    assert chosen(p1, p2, node("d1"), hits=held(p1=10), expected=replace(EXPECTED, spread_s=0.1)) == ("p1", "d1")


def test_the_decode_node_that_lacks_less_is_chosen_where_the_way_is_slow() -> None:
    p = node("p1", 0, {"d1": 1e3, "d2": 1e3})
    assert chosen(p, node("d1", 0), node("d2", 1), hits=held(d2=9)) == ("p1", "d2")


def test_the_faster_path_is_taken() -> None:
    assert chosen(node("p1", 0, {"d1": 1e3, "d2": 1e6}), *map(node, BOTH)) == ("p1", "d2")


def test_a_transfer_hides_behind_the_computation_except_for_its_last_layer_group() -> None:
    layered = replace(FINGERPRINT, num_layers=4)
    p = node("p1", 0, {"d1": 1e6})
    p = replace(p, description=replace(p.description, fingerprint=layered))
    cost = place(p, node("d1")).cost
    assert cost is not None
    assert cost.transfer == pytest.approx(NUM_TOKENS * 4 * TOKEN_BYTES / 1e6 / 4)


def test_a_decode_node_without_memory_costs_what_is_waited_for_it() -> None:
    full = node("d1", 0, memory=Memory(available=0, total=10, hold_s=1.0))
    assert chosen(node("p1", 0, BOTH), full, node("d2", 9)) == ("p1", "d2")


def test_a_pair_is_held_against_its_decode_node_alone_where_none_may_serve_alone() -> None:
    nodes = node("p1", 0, BOTH), node("d1", 2), node("d2", 1)
    assert place(*nodes).alone_cost == place(*nodes, alone=True).alone_cost is not None


def test_of_equal_pairs_the_nearer_one_is_taken() -> None:
    p = node("p1", 0, BOTH, place=("zone", "host"))
    assert chosen(p, node("d1"), node("d2", place=("zone", "other"))) == ("p1", "d2")
    far, near = node("d1", place=("zone", "other")), node("d2", place=("zone", "host"))
    assert chosen(p, far, near) == ("p1", "d2")


def test_a_session_is_a_hint_among_equals() -> None:
    p1, p2, d = node("p1", 0, ("d1",)), node("p2", 0, ("d1",)), node("d1")
    assert chosen(p1, p2, d) == ("p1", "d1")
    assert chosen(p1, p2, d, session="p2") == ("p2", "d1")
    assert chosen(p1, node("p2", 50, ("d1",)), d, session="p2") == ("p1", "d1")
    assert chosen(p1, d, session="p9") == ("p1", "d1")


def test_a_decode_node_serves_alone_only_where_that_is_allowed() -> None:
    placement = place(node("d1", 2), node("d2", 1), alone=True)
    assert (placement.decode.ref.id, placement.bypass) == ("d2", Bypass.NO_PREFILL_NODE)
    with pytest.raises(NoReadyNode, match="no prefill node can serve: no prefill node"):
        chosen(node("d1", 2))


def test_a_pair_that_is_not_proven_is_named_as_the_reason() -> None:
    assert place(node("p1"), node("d1"), alone=True).bypass is Bypass.NO_PROVEN_PAIR


def test_a_decode_node_that_holds_the_prompt_serves_alone_where_that_is_cheaper() -> None:
    p, d = node("p1", 0, ("d1",)), node("d1")
    placement = place(p, d, alone=True, hits=held(d1=9))
    assert (placement.prefill, placement.bypass) == (None, Bypass.CHEAPER)
    assert (placement.cached_tokens, placement.decode_work.tokens) == (288, NUM_TOKENS - 288)
    assert chosen(p, d, hits=held(d1=9)) == ("p1", "d1")


def test_what_a_prompt_costs_the_answers_that_run_speaks_for_the_pair() -> None:
    placement = place(node("p1", 0, ("d1",)), node("d1", 4), alone=True, expected=replace(EXPECTED, pair_overhead_s=0.5))
    assert placement.prefill is not None
    assert placement.cost is not None
    assert placement.alone_cost is not None
    assert placement.alone_cost.stall == pytest.approx(4 * NUM_TOKENS / 1e3)
    assert placement.alone_cost.total > placement.cost.total


def test_nothing_is_called_cheaper_that_was_not_measured() -> None:
    p, d = node("p1", 0, ("d1",), is_measured=False), node("d1")
    assert chosen(p, d, alone=True, hits=held(d1=9)) == ("p1", "d1")


def test_a_decode_node_that_never_computed_a_prompt_is_taken_for_one_that_computes_alike() -> None:
    p, d = node("p1", 0, ("d1",)), node("d1", is_measured=False)
    assert chosen(p, d, alone=True, hits=held(d1=9)) == (None, "d1")
    other = replace(d, description=replace(d.description, kernels="another processor"))
    assert chosen(p, other, alone=True, hits=held(d1=9)) == ("p1", "d1")


def test_without_a_decode_node_nothing_can_be_served() -> None:
    with pytest.raises(NoReadyNode, match="no decode node is ready") as raised:
        chosen(node("p1", 0, BOTH), alone=True)
    assert raised.value.http_status == 503
    assert raised.value.retry_after_s == 1.0
