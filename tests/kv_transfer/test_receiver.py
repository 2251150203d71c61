"""The receiver, turned by hand: early copies, verification, bounded re-copies, and when a leg's blocks are free again."""

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import pytest

from twostep.core.digest import Digests
from twostep.core.errors import StaleLeg, TransferFailed
from twostep.core.ids import Attempt, BlockId, Generation, RequestId
from twostep.core.ticket import LandingExtent, Leg, Ticket, TokenRange
from twostep.kv_transfer.incoming import MAX_RECOPIES, Verdict
from twostep.kv_transfer.notes import PROBE_NOTE, LandedNote, encode_note
from twostep.kv_transfer.pieces import Piece
from twostep.kv_transfer.receiver import IDLE_POLL_S, MAX_EARLY_NOTES, MAX_POLL_S, POLL_S
from twostep.tests.kv_transfer.faults import FaultyTransport
from twostep.tests.kv_transfer.host_memory import compute
from twostep.tests.kv_transfer.nodes import Pair, SourceNode, TargetNode, layout, local_transports, node

MISSING = TokenRange(4, 14)
TABLE = [BlockId(b) for b in (7, 3, 30, 12)]
SOURCE_TABLE = [BlockId(b) for b in (5, 9, 2, 11)]
LAYERS = range(4)
UNIT = layout().layer_block_bytes


class World:
    """P and D over one fabric; what P writes lands at once, what D hears is up to the test."""

    def __init__(self) -> None:
        make = local_transports()
        self.heard: list[bytes] = []
        source = SourceNode(make(node("p")), node("p"), layout())
        faults = FaultyTransport(make(node("d")), notes=lambda _: [])
        self.pair = Pair(source, TargetNode(faults, node("d"), layout()))
        faults.notifications = self._take_heard
        source.sender.connect(self.pair.target.landing())
        self.receiver = self.pair.target.receiver
        self.memory = self.pair.target.memory
        compute(source.memory, source.digests, LAYERS, TokenRange(0, 14), SOURCE_TABLE, seed=1)

    def landed_leg(self, *, num_slots: int = 3, name: str = "r") -> Ticket:
        """Return a ticket whose first slots have been written completely."""
        ticket = self.pair.grant(MISSING, TABLE, num_slots=num_slots, name=name)
        outgoing = self.pair.source.sender.open(ticket, SOURCE_TABLE)
        outgoing.push(LAYERS, range(3))
        for _ in range(3):
            self.pair.source.sender.turn()
        return ticket

    def digests(self, blocks: range = range(3)) -> Digests:
        return self.pair.source.digests.of(LAYERS, MISSING, SOURCE_TABLE)[:, blocks.start : blocks.stop]

    def hear(self, ticket: Ticket, layers: range, blocks: range, *, generation: int | None = None) -> None:
        known = ticket.extent.generation if generation is None else Generation(generation)
        self.heard.append(encode_note(LandedNote(ticket.leg, known, Piece(layers, blocks))))

    def turn(self, times: int = 3) -> None:
        for _ in range(times):
            self.receiver.turn()

    def verdict(self, future: "Future[Verdict]") -> Verdict:
        self.turn(50)
        return future.result(0)

    def has_arrived(self) -> bool:
        source, target = self.pair.source.memory, self.memory
        return all(
            np.array_equal(source.read(layer, MISSING, SOURCE_TABLE), target.read(layer, MISSING, TABLE)) for layer in LAYERS
        )

    def spoil(self, ticket: Ticket, layer: int, slot: int) -> None:
        """Flip one bit of one landed cell."""
        offset = ticket.extent.offset + (layer * ticket.extent.num_slots + slot) * UNIT
        self.pair.target.landing_bytes[offset] ^= 1

    def _take_heard(self) -> list[bytes]:
        heard, self.heard = self.heard, []
        return heard


@pytest.fixture
def world() -> World:
    return World()


def test_a_piece_is_copied_as_soon_as_its_notification_comes(world: World) -> None:
    ticket = world.landed_leg()
    world.hear(ticket, range(2), range(3))
    world.turn(1)
    assert world.memory.num_copies == 1
    assert np.array_equal(world.memory.read(1, MISSING, TABLE), world.pair.source.memory.read(1, MISSING, SOURCE_TABLE))
    assert not world.memory.words[2].any()


def test_finish_copies_only_what_no_notification_announced(world: World) -> None:
    ticket = world.landed_leg()
    world.hear(ticket, range(2), range(3))
    world.turn()
    assert world.verdict(world.receiver.finish(ticket.leg, world.digests())) == Verdict((), 0, 3, 12 * UNIT)
    assert world.memory.num_copies == 2
    assert world.has_arrived()


def test_without_any_notification_everything_is_copied_at_the_end(world: World) -> None:
    ticket = world.landed_leg()
    assert world.verdict(world.receiver.finish(ticket.leg, world.digests())).ok
    assert world.has_arrived()


def test_a_repeated_notification_is_counted_and_copies_nothing(world: World) -> None:
    ticket = world.landed_leg()
    for _ in range(2):
        world.hear(ticket, LAYERS, range(3))
    world.turn()
    assert (world.memory.num_copies, world.receiver.counts.repeated_notes) == (1, 1)


def test_a_notification_of_another_generation_is_counted_and_ignored(world: World) -> None:
    ticket = world.landed_leg()
    world.hear(ticket, LAYERS, range(3), generation=99)
    world.turn()
    assert (world.memory.num_copies, world.receiver.counts.stale_notes) == (0, 1)


def test_a_notification_outside_its_leg_or_of_foreign_bytes_is_counted_and_ignored(world: World) -> None:
    ticket = world.landed_leg()
    world.hear(ticket, range(5), range(3))
    world.hear(ticket, LAYERS, range(4))
    world.heard.append(b"who are you?")
    world.turn()
    assert (world.memory.num_copies, world.receiver.counts.bad_notes) == (0, 3)


def test_a_notification_that_comes_before_its_leg_is_kept(world: World) -> None:
    ticket = world.landed_leg()
    world.turn()
    world.receiver.forget(ticket.leg)
    world.turn()
    world.hear(ticket, LAYERS, range(3))
    world.turn()
    assert world.memory.num_copies == 0
    world.receiver.expect(ticket.leg, ticket.extent, MISSING, world.pair.source.geometry, TABLE)
    world.turn()
    assert world.has_arrived()


def test_early_notifications_are_bounded_and_the_loss_is_counted(world: World) -> None:
    ticket = world.landed_leg()
    world.receiver.forget(ticket.leg)
    world.turn()
    for _ in range(MAX_EARLY_NOTES + 3):
        world.hear(ticket, LAYERS, range(3))
    world.turn()
    assert world.receiver.counts.lost_early_notes == 3


def test_the_tail_beyond_the_prompt_is_zeroed(world: World) -> None:
    world.memory.words[:] = 7
    ticket = world.landed_leg()
    assert world.verdict(world.receiver.finish(ticket.leg, world.digests())).ok
    assert not world.memory.words[:, TABLE[3], :, 2:].any()
    assert (world.memory.words[:, TABLE[0]] == 7).all()


def test_bytes_that_become_visible_late_are_copied_again(world: World) -> None:
    ticket = world.landed_leg()
    world.spoil(ticket, 2, 1)
    world.hear(ticket, LAYERS, range(3))
    world.turn()
    world.spoil(ticket, 2, 1)
    assert world.verdict(world.receiver.finish(ticket.leg, world.digests())) == Verdict((), 1, 3, 12 * UNIT)
    assert world.has_arrived()
    assert world.receiver.counts.recopied_claims == 1


def test_one_round_copies_every_wrong_cell_before_it_compares_again(world: World) -> None:
    ticket = world.landed_leg()
    cells = ((0, 0), (2, 1), (3, 2))
    for cell in cells:
        world.spoil(ticket, *cell)
    world.hear(ticket, LAYERS, range(3))
    world.turn()
    for cell in cells:
        world.spoil(ticket, *cell)
    assert world.verdict(world.receiver.finish(ticket.leg, world.digests())) == Verdict((), 1, 3, 12 * UNIT)
    assert world.memory.num_copies == 1 + len(cells)


def test_a_byte_that_stays_wrong_is_named_after_three_more_copies(world: World) -> None:
    ticket = world.landed_leg()
    world.spoil(ticket, 2, 1)
    world.spoil(ticket, 3, 2)
    verdict = world.verdict(world.receiver.finish(ticket.leg, world.digests()))
    assert verdict == Verdict(((2, 1), (3, 2)), MAX_RECOPIES, 0, 12 * UNIT)
    assert not verdict.ok
    assert world.memory.num_copies == 1 + 2 * MAX_RECOPIES
    assert world.receiver.counts.mismatched_claims == 1


def test_a_ring_is_credited_only_up_to_what_has_been_verified(world: World) -> None:
    ticket = world.landed_leg(num_slots=2)
    first = world.receiver.landed(ticket.leg, Piece(LAYERS, range(1, 2)), world.digests(range(1, 2)))
    assert world.verdict(first).verified_end == 0
    second = world.receiver.landed(ticket.leg, Piece(LAYERS, range(1)), world.digests(range(1)))
    assert world.verdict(second).verified_end == 2


def test_a_verified_cell_of_a_ring_is_never_copied_again(world: World) -> None:
    ticket = world.landed_leg(num_slots=2)
    digests = world.digests(range(2))
    assert world.verdict(world.receiver.landed(ticket.leg, Piece(LAYERS, range(2)), digests)).ok
    copies = world.memory.num_copies
    again = world.verdict(world.receiver.landed(ticket.leg, Piece(LAYERS, range(2)), digests + np.uint64(1)))
    assert (len(again.mismatched), again.num_recopies, world.memory.num_copies) == (8, 0, copies)


def test_a_leg_that_is_not_expected_is_stale(world: World) -> None:
    ticket = world.landed_leg()
    world.receiver.forget(ticket.leg)
    finished = world.receiver.finish(ticket.leg, world.digests())
    world.turn()
    with pytest.raises(StaleLeg, match="request r, attempt 1: no such leg"):
        finished.result(0)


def test_digests_that_do_not_fit_are_refused(world: World) -> None:
    ticket = world.landed_leg()
    finished = world.receiver.finish(ticket.leg, world.digests(range(2)))
    outside = world.receiver.landed(ticket.leg, Piece(LAYERS, range(4)), world.digests())
    world.turn()
    for refused in (finished, outside):
        with pytest.raises(ValueError, match=r"do not fit|not a run inside"):
            refused.result(0)


def test_forgetting_ends_what_is_asked_about_the_leg_and_copies_nothing_more(world: World) -> None:
    ticket = world.landed_leg()
    finished = world.receiver.finish(ticket.leg, world.digests())
    forgotten = world.receiver.forget(ticket.leg)
    assert not forgotten.done()
    world.turn(1)
    assert forgotten.result(0) is None
    with pytest.raises(StaleLeg, match="the leg has ended"):
        finished.result(0)
    copies = world.memory.num_copies
    world.hear(ticket, LAYERS, range(3))
    world.turn()
    assert world.memory.num_copies == copies


def test_forgetting_an_unknown_leg_resolves_too(world: World) -> None:
    forgotten = world.receiver.forget(Leg(RequestId("never seen"), Attempt(7), node("p"), node("d")))
    world.turn(1)
    assert forgotten.result(0) is None


def test_a_new_attempt_does_not_see_the_old_ones_notifications(world: World) -> None:
    old = world.landed_leg()
    world.receiver.forget(old.leg)
    new = world.pair.grant(MISSING, TABLE, attempt=2)
    world.hear(old, LAYERS, range(3))
    world.turn()
    assert world.memory.num_copies == 0
    assert not world.verdict(world.receiver.finish(new.leg, world.digests())).ok


def test_expecting_a_leg_anew_ends_what_was_asked_about_it_before(world: World) -> None:
    ticket = world.landed_leg()
    finished = world.receiver.finish(ticket.leg, world.digests())
    world.receiver.expect(ticket.leg, ticket.extent, MISSING, world.pair.source.geometry, TABLE)
    world.turn()
    with pytest.raises(StaleLeg, match="expected anew"):
        finished.result(0)


def test_legs_take_turns_one_copy_each(world: World) -> None:
    copies: list[Sequence[BlockId]] = []
    plain = world.memory.copy_in

    def watched(extent: object, piece: object, table: Sequence[BlockId]) -> Digests:
        copies.append(table)
        return plain(extent, piece, table)

    world.memory.copy_in = watched
    world.receiver._max_copy_bytes = 4 * UNIT
    other_table = [BlockId(b) for b in (40, 41, 42, 43)]
    for name, table in (("a", TABLE), ("b", other_table)):
        ticket = world.pair.grant(MISSING, table, name=name)
        world.hear(ticket, LAYERS, range(3))
    world.turn(6)
    assert copies == [tuple(TABLE), tuple(other_table)] * 3


def test_an_extent_or_table_that_does_not_fit_is_refused(world: World) -> None:
    ticket = world.landed_leg()
    extent, geometry = ticket.extent, world.pair.source.geometry
    for wrong in (LandingExtent(0, extent.num_bytes - 1, 3, Generation(1)), LandingExtent(0, 0, 0, Generation(1))):
        with pytest.raises(ValueError, match="does not fit"):
            world.receiver.expect(ticket.leg, wrong, MISSING, geometry, TABLE)
    with pytest.raises(ValueError, match="lies outside"):
        world.receiver.expect(ticket.leg, LandingExtent(1 << 20, extent.num_bytes, 3, Generation(1)), MISSING, geometry, TABLE)
    with pytest.raises(ValueError, match="3 blocks do not hold 14 tokens"):
        world.receiver.expect(ticket.leg, extent, MISSING, geometry, TABLE[:3])


def test_polling_slows_down_while_nothing_comes(world: World) -> None:
    clock = world.pair.target.clock
    clock.advance(60)
    assert world.receiver.turn() == IDLE_POLL_S
    ticket = world.landed_leg()
    assert world.receiver.turn() == 0
    assert world.receiver.turn() == POLL_S
    clock.advance(0.004)
    assert world.receiver.turn() == pytest.approx(0.0004)
    clock.advance(60)
    assert world.receiver.turn() == MAX_POLL_S
    world.hear(ticket, LAYERS, range(3))
    assert world.receiver.turn() == 0


def test_a_probe_makes_the_receiver_poll_fast(world: World) -> None:
    world.pair.target.clock.advance(60)
    assert world.receiver.turn() == IDLE_POLL_S
    world.heard.append(PROBE_NOTE)
    assert [world.receiver.turn(), world.receiver.turn()] == [0, POLL_S]
    assert (world.receiver.counts.probes, world.receiver.counts.bad_notes) == (1, 0)


def test_stopping_ends_every_open_leg_and_takes_no_more(world: World) -> None:
    ticket = world.landed_leg()
    world.turn()
    finished = world.receiver.finish(ticket.leg, world.digests())
    world.receiver.stop()
    with pytest.raises(StaleLeg, match="the receiver has stopped"):
        finished.result(0)
    assert world.receiver.fault is not None
    assert world.receiver.forget(ticket.leg).done()
    with pytest.raises(TransferFailed, match="the receiver has stopped"):
        world.receiver.finish(ticket.leg, world.digests())
