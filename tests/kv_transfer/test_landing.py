"""The landing pool's accounting: where extents lie, when they come back, and that the bytes always add up."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.core.fingerprint import Geometry
from twostep.core.ids import Attempt, RequestId
from twostep.core.ticket import LandingExtent, Leg
from twostep.core.turnover import Supply
from twostep.kv_transfer.landing import LandingCensus, LandingPhase, LandingPool, audit_loans, source_layout
from twostep.tests.handoff.clock import ManualClock
from twostep.tests.kv_transfer.nodes import layout, node


def leg(name: str) -> Leg:
    return Leg(RequestId(name), Attempt(1), node("p"), node("d"))


@dataclass
class World:
    clock: ManualClock
    pool: LandingPool


@pytest.fixture
def world() -> World:
    clock = ManualClock()
    return World(clock, LandingPool(1000, cooldown_s=10, clock=clock, max_share=0.5))


def lend(world: World, unit_bytes: int, num_slots: int, name: str = "r") -> LandingExtent:
    extent = world.pool.lend(unit_bytes, 2, num_slots, leg(name))
    assert extent is not None
    return extent


def test_extents_lie_one_after_another_aligned_to_the_sources_unit(world: World) -> None:
    first, second, third = lend(world, 30, 1), lend(world, 100, 1), lend(world, 30, 1)
    assert [(e.offset, e.num_bytes) for e in (first, second, third)] == [(0, 60), (100, 200), (300, 60)]


def test_the_first_gap_that_is_large_enough_is_used(world: World) -> None:
    first, second, _ = lend(world, 50, 1), lend(world, 100, 1), lend(world, 50, 1)
    world.pool.give_back(first, proven=True)
    world.pool.give_back(second, proven=True)
    assert lend(world, 100, 1).offset == 0
    assert lend(world, 50, 1).offset == 200


def test_a_full_pool_lends_nothing(world: World) -> None:
    lend(world, 100, 5)
    assert world.pool.lend(50, 2, 1, leg("more")) is None


def test_every_loan_has_its_own_generation(world: World) -> None:
    first = lend(world, 100, 1)
    world.pool.give_back(first, proven=True)
    second = lend(world, 100, 1)
    assert (first.offset, first.generation) == (0, 1)
    assert (second.offset, second.generation) == (0, 2)


def test_a_proven_extent_is_lent_again_at_once(world: World) -> None:
    world.pool.give_back(lend(world, 100, 5), proven=True)
    assert lend(world, 100, 5).offset == 0
    assert world.pool.unproven_reuse == 0


def test_an_unproven_extent_waits_for_its_cooldown_and_is_counted(world: World) -> None:
    extent = lend(world, 100, 5)
    world.clock.now = 3
    assert world.pool.give_back(extent, proven=False)
    assert world.pool.census() == LandingCensus(1000, 0, 0, 1000)
    world.clock.now = 12.9
    assert world.pool.lend(100, 2, 5, leg("next")) is None
    world.clock.now = 13
    assert lend(world, 100, 5).offset == 0
    assert world.pool.unproven_reuse == 1


def test_a_late_proof_ends_the_cooldown(world: World) -> None:
    extent = lend(world, 100, 5)
    world.pool.give_back(extent, proven=False)
    world.pool.give_back(extent, proven=True)
    assert world.pool.census().free_bytes == 1000
    assert world.pool.unproven_reuse == 0


def test_giving_back_twice_changes_nothing(world: World) -> None:
    extent = lend(world, 100, 1)
    assert world.pool.give_back(extent, proven=True)
    successor = lend(world, 100, 1)
    assert not world.pool.give_back(extent, proven=True)
    assert not world.pool.give_back(extent, proven=False)
    assert [loan.extent for loan in world.pool.ledger()] == [successor]


def test_a_second_unproven_return_does_not_lengthen_the_cooldown(world: World) -> None:
    extent = lend(world, 100, 5)
    world.pool.give_back(extent, proven=False)
    world.clock.now = 9
    world.pool.give_back(extent, proven=False)
    world.clock.now = 10
    assert world.pool.census().free_bytes == 1000


def test_a_range_beyond_the_share_gets_a_ring(world: World) -> None:
    assert world.pool.num_slots(50, 2, 3) == 3
    assert world.pool.num_slots(50, 2, 100) == 5
    assert world.pool.num_slots(300, 2, 1) == 0


def test_an_extent_without_slots_is_refused(world: World) -> None:
    with pytest.raises(ValueError, match="0 slots"):
        world.pool.lend(50, 2, 0, leg("r"))


def test_the_ledger_names_owner_phase_and_since_when(world: World) -> None:
    first, second = lend(world, 50, 1, "a"), lend(world, 50, 1, "b")
    world.clock.now = 4
    world.pool.give_back(first, proven=False)
    rows = [(loan.owner, loan.extent, loan.phase, loan.since_s) for loan in world.pool.ledger()]
    assert rows == [(leg("a"), first, LandingPhase.DRAINING, 4), (leg("b"), second, LandingPhase.LENT, 0)]


def test_a_peers_blocks_keep_its_own_size_and_heads() -> None:
    found = source_layout(layout(block_tokens=8, num_kv_heads=4), Geometry(32, 1000, 2, 2, 4))
    assert found == layout(block_tokens=32, num_kv_heads=2)


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("lend"), st.sampled_from([7, 16, 30, 64]), st.integers(1, 6)),
            st.tuples(st.sampled_from(["proven", "unproven"]), st.integers(0, 20), st.just(0)),
            st.tuples(st.just("wait"), st.integers(1, 12), st.just(0)),
        ),
        max_size=60,
    )
)
def test_no_two_extents_overlap_and_the_census_adds_up(steps: list[tuple[str, int, int]]) -> None:
    clock = ManualClock()
    pool = LandingPool(1000, cooldown_s=10, clock=clock)
    known: list[LandingExtent] = []
    for what, number, slots in steps:
        if what == "lend":
            extent = pool.lend(number, 2, slots, leg("r"))
            known += [extent] if extent else []
        elif what == "wait":
            clock.advance(number)
        elif known:
            pool.give_back(known[number % len(known)], proven=what == "proven")
        _check(pool)
    for extent in known:
        pool.give_back(extent, proven=True)
    assert pool.census() == LandingCensus(1000, 1000, 0, 0)


def _check(pool: LandingPool) -> None:
    census, loans = pool.census(), pool.ledger()
    assert census.free_bytes + census.lent_bytes + census.draining_bytes == census.total_bytes
    taken = [byte for loan in loans for byte in range(loan.extent.offset, loan.end)]
    assert len(taken) == len(set(taken)) == census.total_bytes - census.free_bytes


def test_what_one_node_may_write_to_counts_until_it_is_quiet(world: World) -> None:
    extent, probe = lend(world, 50, 1), world.pool.lend(20, 1, 1, node("p"))
    assert probe is not None
    assert (world.pool.bytes_of(node("p")), world.pool.bytes_of(node("q"))) == (120, 0)
    world.pool.give_back(extent, proven=False)
    assert world.pool.bytes_of(node("p")) == 120
    world.clock.advance(10)
    assert world.pool.bytes_of(node("p")) == 20


def test_the_rest_of_a_cooldown_is_told(world: World) -> None:
    extent = lend(world, 50, 1)
    (lent,) = world.pool.ledger()
    assert world.pool.cooldown_left_s(lent) == 0.0
    world.pool.give_back(extent, proven=False)
    world.clock.advance(4)
    (draining,) = world.pool.ledger()
    assert world.pool.cooldown_left_s(draining) == 6.0


def test_the_pace_counts_the_cooldown_too(world: World) -> None:
    extent = lend(world, 50, 5)
    assert world.pool.supply() == Supply(free=500, held=500, mean_hold_s=None)
    world.clock.advance(3)
    world.pool.give_back(extent, proven=False)
    world.clock.advance(10)
    assert world.pool.supply() == Supply(free=1000, held=0, mean_hold_s=13.0)


def test_looking_for_room_takes_none(world: World) -> None:
    assert world.pool.find(1000, 100) == 0
    lend(world, 30, 1)
    assert world.pool.find(100, 100) == 100
    assert world.pool.find(1000, 100) is None


def test_extents_that_cannot_be_are_named(world: World) -> None:
    first, second = lend(world, 50, 1), lend(world, 50, 1)
    assert world.pool.audit() == ()
    loans = world.pool.ledger()
    assert audit_loans(loans, 150) == (f"extent {second.generation} of {leg('r')} lies outside the landing pool",)
    doubled = replace(loans[1], extent=replace(second, offset=50))
    assert audit_loans([loans[0], doubled], 1000) == (f"extents {first.generation} and {second.generation} overlap",)
