"""The sender, turned by hand: what it posts, when a leg is over, and that one leg's failure is nobody else's."""

from dataclasses import replace

import pytest

from twostep.core.errors import StaleLeg, TransferFailed
from twostep.core.ids import BlockId, Generation
from twostep.core.ticket import LandingExtent, Ticket, TokenRange
from twostep.kv_transfer.notes import decode_note
from twostep.kv_transfer.outgoing import LegReport, OutgoingLeg
from twostep.kv_transfer.pieces import Piece
from twostep.kv_transfer.probe import probe_digest
from twostep.tests.handoff.clock import ManualClock
from twostep.tests.kv_transfer.faults import FaultyTransport
from twostep.tests.kv_transfer.nodes import Pair, SourceNode, TargetNode, layout, local_transports, node

MISSING = TokenRange(4, 14)
TABLE = [BlockId(b) for b in (5, 9, 2, 11)]
UNIT = layout().layer_block_bytes


class World:
    """P over a faulty transport, and D."""

    def __init__(self, **options: int) -> None:
        make = local_transports()
        self.clock = ManualClock()
        self.faults = FaultyTransport(make(node("p")))
        source = SourceNode(self.faults, node("p"), layout(), clock=self.clock, **options)
        self.pair = Pair(source, TargetNode(make(node("d")), node("d"), layout()))
        self.sender = source.sender
        self.sender.connect(self.pair.target.landing())

    def ticket(self, *, num_slots: int = 3, name: str = "r") -> Ticket:
        return self.pair.grant(MISSING, TABLE, num_slots=num_slots, name=name)

    def open(self, *, num_slots: int = 3, name: str = "r") -> OutgoingLeg:
        return self.sender.open(self.ticket(num_slots=num_slots, name=name), TABLE)

    def written(self) -> list[Piece]:
        return [decode_note(note).piece for note in self.pair.target.transport.notifications()]

    def turn(self, times: int = 3) -> None:
        for _ in range(times):
            self.sender.turn()


@pytest.fixture
def world() -> World:
    return World()


def test_one_write_goes_out_per_layer_group_and_run_of_blocks(world: World) -> None:
    leg = world.open()
    pushed = [Piece(range(2), range(1)), Piece(range(2, 4), range(1)), Piece(range(4), range(1, 3))]
    for piece in pushed:
        leg.push(piece.layers, piece.blocks)
    world.turn()
    assert world.written() == pushed


def test_a_short_prompt_goes_out_in_one_write() -> None:
    world = World(one_write_tokens=11)
    leg = world.open()
    for layers in (range(2), range(2, 4)):
        leg.push(layers, range(3))
    world.turn()
    report = leg.finish()
    world.turn()
    assert world.written() == [Piece(range(4), range(3))]
    assert report.result().num_writes == 1


def test_a_large_push_is_cut_so_that_legs_take_turns() -> None:
    world = World(max_write_bytes=4 * UNIT)
    legs = [world.open(name=name) for name in ("a", "b")]
    for leg in legs:
        leg.push(range(4), range(3))
    world.turn(2)
    notes = [decode_note(note) for note in world.pair.target.transport.notifications()]
    assert [(note.leg.request, note.piece.blocks) for note in notes] == [
        ("a", range(1)),
        ("b", range(1)),
        ("a", range(1, 2)),
        ("b", range(1, 2)),
    ]


def test_the_report_tells_hidden_from_exposed_time(world: World) -> None:
    leg = world.open()
    world.faults.holding = True
    leg.push(range(2), range(3))
    world.turn()
    world.clock.now = 2
    world.faults.holding = False
    world.turn()
    world.clock.now = 5
    world.faults.holding = True
    leg.push(range(2, 4), range(3))
    world.turn()
    world.clock.now = 9
    world.faults.holding = False
    report = leg.finish()
    world.turn()
    assert report.result() == LegReport(bytes_sent=12 * UNIT, num_writes=2, transfer_s=6, exposed_s=4)


def test_a_leg_whose_writes_are_done_is_over_as_soon_as_it_is_finished(world: World) -> None:
    leg = world.open()
    leg.push(range(4), range(3))
    world.turn()
    assert leg.finish().result().bytes_sent == 12 * UNIT
    world.turn()
    with pytest.raises(StaleLeg):
        leg.push(range(4), range(3))


def test_finish_waits_for_every_write(world: World) -> None:
    leg = world.open()
    world.faults.holding = True
    leg.push(range(4), range(3))
    report = leg.finish()
    world.turn()
    assert not report.done()
    world.faults.holding = False
    world.turn()
    assert report.result().bytes_sent == 12 * UNIT


def test_finishing_before_everything_was_pushed_is_refused(world: World) -> None:
    leg = world.open()
    leg.push(range(2), range(3))
    with pytest.raises(ValueError, match="6 cells were never pushed"):
        leg.finish()


def test_pushing_twice_or_outside_is_refused_before_anything_is_posted(world: World) -> None:
    leg = world.open()
    leg.push(range(2), range(3))
    for layers, blocks in ((range(1, 3), range(1)), (range(2, 5), range(1)), (range(2, 4), range(2, 4))):
        with pytest.raises(ValueError, match=r"second time|not a run inside"):
            leg.push(layers, blocks)
    world.turn()
    assert world.written() == [Piece(range(2), range(3))]


def test_nothing_can_be_pushed_after_the_end(world: World) -> None:
    leg = world.open()
    leg.push(range(2), range(3))
    leg.abort()
    with pytest.raises(StaleLeg, match="nothing more can be pushed"):
        leg.push(range(2, 4), range(3))


def test_an_aborted_leg_posts_nothing_more_and_is_drained_once_its_writes_are_done(world: World) -> None:
    leg = world.open()
    world.faults.holding = True
    leg.push(range(2), range(3))
    world.turn()
    leg.push(range(2, 4), range(3))
    drained = leg.abort()
    world.turn()
    assert not drained.done()
    world.faults.holding = False
    world.turn()
    assert drained.result() is True
    assert world.written() == [Piece(range(2), range(3))]
    with pytest.raises(StaleLeg, match="aborted"):
        leg.outcome.result()
    assert leg.report().bytes_sent == 6 * UNIT


def test_a_leg_that_never_posted_is_drained(world: World) -> None:
    drained = world.open().abort()
    world.turn()
    assert drained.result() is True


def test_aborting_after_the_end_changes_nothing(world: World) -> None:
    leg = world.open()
    leg.push(range(4), range(3))
    report = leg.finish()
    world.turn()
    assert leg.abort().result() is True
    assert report.result().num_writes == 1


def test_a_failed_write_fails_its_leg_once_and_no_other(world: World) -> None:
    lost, well = world.open(name="lost"), world.open(name="well")
    world.faults.failing.extend([True, False])
    for leg in (lost, well):
        leg.push(range(4), range(3))
    world.turn()
    with pytest.raises(TransferFailed, match="request lost: a write to d@1 has failed"):
        lost.outcome.result(0)
    with pytest.raises(StaleLeg):
        lost.push(range(4), range(3))
    assert lost.finish() is lost.outcome
    assert lost.abort().result(0) is False
    report = well.finish()
    world.turn()
    assert report.result().bytes_sent == 12 * UNIT


def test_a_failed_leg_ends_only_when_all_its_writes_have(world: World) -> None:
    leg = world.open()
    leg.push(range(2), range(3))
    leg.push(range(2, 4), range(3))
    world.faults.holding = True
    world.turn()
    world.faults.failing.extend([True, False])
    assert not leg.outcome.done()
    world.faults.holding = False
    world.turn()
    assert isinstance(leg.outcome.exception(), TransferFailed)


def test_a_leg_whose_peer_was_forgotten_fails_drained_because_nothing_was_posted(world: World) -> None:
    leg = world.open()
    world.sender.forget(node("d"))
    leg.push(range(4), range(3))
    world.turn()
    with pytest.raises(TransferFailed, match="not connected"):
        leg.outcome.result(0)
    assert leg.abort().result(0) is True


def test_a_ring_waits_for_credit_and_tells_what_was_written(world: World) -> None:
    written: list[Piece] = []
    leg = world.sender.open(world.ticket(num_slots=2), TABLE, on_written=written.append)
    leg.push(range(4), range(3))
    report = leg.finish()
    world.turn()
    assert written == [Piece(range(4), range(2))]
    leg.credit(range(2), 2)
    world.turn()
    assert written == [Piece(range(4), range(2))]
    leg.credit(range(4), 1)
    world.turn()
    assert written == [Piece(range(4), range(2)), Piece(range(4), range(2, 3))]
    assert report.result().num_writes == 2


def test_a_ticket_that_does_not_fit_is_refused(world: World) -> None:
    ticket = world.ticket()
    extent = ticket.extent

    def changed(offset: int = extent.offset, num_bytes: int = extent.num_bytes, num_slots: int = 3) -> Ticket:
        return replace(ticket, extent=LandingExtent(offset, num_bytes, num_slots, Generation(1)))

    tickets = [
        replace(ticket, missing=TokenRange(3, 14)),
        replace(ticket, missing=TokenRange(4, 17)),
        replace(ticket, missing=TokenRange(4, 4)),
        changed(offset=1),
        changed(offset=1 << 20),
        changed(num_slots=2),
        changed(num_slots=0, num_bytes=0),
    ]
    for wrong in tickets:
        with pytest.raises(ValueError, match=r"does not match|is not 4 layers|lies outside"):
            world.sender.open(wrong, TABLE)
    with pytest.raises(ValueError, match="lie outside a pool of 64"):
        world.sender.open(ticket, [BlockId(b) for b in (0, 1, 2, 64)])


def test_a_ticket_of_another_registration_is_stale(world: World) -> None:
    with pytest.raises(StaleLeg, match="registration 2"):
        world.sender.open(replace(world.ticket(), registration=2), TABLE)


def test_a_ticket_of_a_node_that_is_not_connected_is_refused_at_once(world: World) -> None:
    ticket = world.ticket()
    world.sender.forget(node("d"))
    with pytest.raises(TransferFailed, match="d@1 is not connected"):
        world.sender.open(ticket, TABLE)


def test_a_probe_proves_that_its_bytes_arrived_and_measures_them(world: World) -> None:
    target = world.pair.target
    probe = world.sender.probe(target.ref, 4096, 1024)
    world.clock.now = 1
    while not probe.done():
        world.clock.advance(0.5)
        world.turn(1)
    assert probe.result().digest == probe_digest(target.landing_bytes[4096 : 4096 + 1024].tobytes())
    assert probe.result().digest != probe_digest(target.landing_bytes[8192 : 8192 + 1024].tobytes())
    assert probe.result().bytes_per_s > 0


def test_a_probe_of_an_unknown_node_or_place_fails(world: World) -> None:
    unknown = world.sender.probe(node("x"), 0, 16)
    outside = world.sender.probe(node("d"), 1 << 20, 16)
    world.turn()
    with pytest.raises(TransferFailed, match="x@1 is not connected"):
        unknown.result(0)
    with pytest.raises(ValueError, match="outside"):
        outside.result(0)


def test_stopping_ends_every_open_leg_and_takes_no_more(world: World) -> None:
    leg = world.open()
    world.faults.holding = True
    leg.push(range(4), range(3))
    probe = world.sender.probe(node("d"), 0, 16)
    world.turn()
    world.sender.stop()
    for future in (leg.outcome, probe):
        with pytest.raises(TransferFailed, match="the sender has stopped"):
            future.result(0)
    assert leg.abort().result(0) is False
    assert world.sender.fault is not None
    with pytest.raises(TransferFailed, match="the sender has stopped"):
        world.open(name="late")
