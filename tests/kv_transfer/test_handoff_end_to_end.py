"""Sender and receiver together: whatever the chunking, ring or notifications, the copy equals the source or is refused."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import TokenRange
from twostep.kv_transfer.incoming import Verdict
from twostep.kv_transfer.landing import LandingCensus
from twostep.kv_transfer.nixl_transport import NixlTransport
from twostep.kv_transfer.outgoing import LegReport
from twostep.kv_transfer.pieces import Piece
from twostep.kv_transfer.ucx_transport import UcxTransport
from twostep.tests.kv_transfer.faults import FaultyTransport
from twostep.tests.kv_transfer.host_memory import compute, view
from twostep.tests.kv_transfer.needs_ucx import needs_ucx
from twostep.tests.kv_transfer.nodes import MakeTransport, Pair, SourceNode, TargetNode, layout, local_transports, node


class Scene:
    """One random handoff: geometry, prompt, prefix, chunks, ring size, notifications, and which cell of it is spoiled."""

    def __init__(self, make: MakeTransport, seed: int) -> None:
        self.random = Random(seed)
        here, there = self.random.choice([(4, 4), (4, 8), (8, 4), (8, 8)])
        self.kv = layout(here, num_layers=self.random.randint(1, 5))
        self.layers = range(self.kv.num_layers)
        self.missing = self._missing(max(here, there))
        self.pair = self._pair(make, layout(there, self.kv.num_layers))
        self.source_table = self._table(self.kv)
        self.target_table = self._table(self.pair.target.memory.layout)
        num_blocks = self.kv.num_blocks(len(self.missing))
        self.ticket = self.pair.grant(self.missing, self.target_table, num_slots=self.random.randint(1, num_blocks))
        self.leg = self.pair.source.sender.open(self.ticket, self.source_table, on_written=self._tell_landed)
        self.verdicts: list[Verdict] = []

    def run(self) -> Verdict:
        """Compute and push chunk by chunk, finish, and return D's verdict on the whole."""
        for tokens in self._chunks():
            for layers in self._groups():
                compute(self.pair.source.memory, self.pair.source.digests, layers, tokens, self.source_table, seed=3)
                self._push(layers, tokens)
                self.pair.run(turns=self.random.randint(0, 2))
        report = self.leg.finish()
        self.pair.run(report)
        self._check(report.result())
        verdict = self.pair.target.receiver.finish(self.ticket.leg, self._digests(Piece(self.layers, self._blocks())))
        self.pair.run(verdict)
        return verdict.result()

    def copy_equals_source(self) -> bool:
        source, target = self.pair.source.memory, self.pair.target.memory
        return all(
            np.array_equal(
                source.read(layer, self.missing, self.source_table), target.read(layer, self.missing, self.target_table)
            )
            for layer in self.layers
        )

    def _pair(self, make: MakeTransport, target: KVLayout) -> Pair:
        p, d = node("p"), node("d")
        options = {"one_write_tokens": self.random.choice([0, 20]), "max_write_bytes": self.random.choice([1, 1500, 1 << 20])}
        notes = self.random.choice([_as_they_are, self._lost_or_doubled, _lost])
        receiving = FaultyTransport(make(d), notes=notes)
        pair = Pair(SourceNode(make(p), p, self.kv, **options), TargetNode(receiving, d, target))
        pair.target.memory.words[:] = 0xDEADBEEF
        pair.source.sender.connect(pair.target.landing())
        return pair

    def _missing(self, alignment: int) -> TokenRange:
        start = alignment * self.random.randint(0, 2)
        return TokenRange(start, start + self.random.randint(1, 50))

    def _table(self, kv: KVLayout) -> list[BlockId]:
        return [BlockId(b) for b in self.random.sample(range(64), kv.num_blocks(self.missing.end))]

    def _chunks(self) -> list[TokenRange]:
        """Return runs that cover the missing range; P may have cached less than D, and starts before it then."""
        start = self.random.choice([0, self.missing.start])
        inner = range(start + 1, self.missing.end)
        cuts = sorted(self.random.sample(inner, min(len(inner), self.random.randint(0, 4))))
        return [TokenRange(a, b) for a, b in pairwise([start, *cuts, self.missing.end])]

    def _groups(self) -> list[range]:
        size = self.random.randint(1, len(self.layers))
        return [range(first, min(first + size, len(self.layers))) for first in range(0, len(self.layers), size)]

    def _push(self, layers: range, tokens: TokenRange) -> None:
        """Push the blocks that this chunk has filled, and the partial last one with the final chunk."""
        size, start = self.kv.block_tokens, self.missing.start
        first = max(0, (tokens.start - start) // size)
        end = -(-(tokens.end - start) // size) if tokens.end == self.missing.end else max(0, (tokens.end - start) // size)
        if first < end:
            self.leg.push(layers, range(first, end))

    def _blocks(self) -> range:
        return range(self.kv.num_blocks(len(self.missing)))

    def _digests(self, piece: Piece) -> np.ndarray:
        known = self.pair.source.digests.of(piece.layers, self.missing, self.source_table)
        return known[:, piece.blocks.start : piece.blocks.stop]

    def _tell_landed(self, piece: Piece) -> None:
        """Stand for `Landed` and `Credit`: what a ring needs to go on."""
        if self.ticket.extent.num_slots == len(self._blocks()):
            return
        verdict = self.pair.target.receiver.landed(self.ticket.leg, piece, self._digests(piece))
        verdict.add_done_callback(lambda found: self.leg.credit(piece.layers, found.result().verified_end))

    def _lost_or_doubled(self, note: bytes) -> list[bytes]:
        return [note] * self.random.randint(0, 2)

    def _check(self, report: LegReport) -> None:
        assert report.bytes_sent == len(self.layers) * len(self._blocks()) * self.kv.layer_block_bytes

    def close(self) -> None:
        """Release everything as the nodes do, and check that nothing is left."""
        forgotten = self.pair.target.receiver.forget(self.ticket.leg)
        drained = self.leg.abort()
        self.pair.run(forgotten, drained)
        assert drained.result()
        self.pair.target.pool.give_back(self.ticket.extent, proven=True)
        assert self.pair.target.pool.census() == LandingCensus(1 << 20, 1 << 20, 0, 0)
        self.pair.source.transport.close()
        self.pair.target.transport.close()


def _as_they_are(note: bytes) -> list[bytes]:
    return [note]


def _lost(_: bytes) -> list[bytes]:
    return []


@pytest.mark.parametrize("seed", range(150))
def test_a_random_handoff_arrives_exactly(seed: int) -> None:
    scene = Scene(local_transports(), seed)
    assert scene.run().ok
    assert scene.copy_equals_source()
    scene.close()


@pytest.mark.processes
@pytest.mark.parametrize("seed", range(150, 175))
def test_a_random_handoff_arrives_exactly_over_nixl(seed: int) -> None:
    scene = Scene(NixlTransport, seed)
    assert scene.run().ok
    assert scene.copy_equals_source()
    scene.close()


@needs_ucx
@pytest.mark.parametrize("seed", range(175, 185))
def test_a_random_handoff_arrives_exactly_over_ucx(seed: int) -> None:
    scene = Scene(UcxTransport, seed)
    assert scene.run().ok
    assert scene.copy_equals_source()
    scene.close()


def test_a_partial_last_block_leaves_zeros_behind_it() -> None:
    scene = Scene(local_transports(), 1)
    assert scene.run().ok
    size = scene.pair.target.memory.layout.block_tokens
    tail = scene.pair.target.memory.words[:, scene.target_table[-1], :, scene.missing.end % size :]
    assert scene.missing.end % size
    assert not tail.any()


def spoil_landing(scene: Scene) -> None:
    """Flip one bit of the landing extent just before each copy of its cell: a late write of somebody else."""
    memory, extent = scene.pair.target.memory, scene.ticket.extent
    plain = memory.copy_in
    layer, block = scene.random.choice(scene.layers), scene.random.choice(scene._blocks())
    offset = (layer * extent.num_slots + block % extent.num_slots) * scene.kv.layer_block_bytes

    def copy_in(region: MemoryRegion, piece: LandedPiece, table: object) -> object:
        hit = layer in piece.layers and block in piece.source_blocks
        if hit:
            view(region)[offset] ^= 1
        digests = plain(region, piece, table)
        if hit:
            view(region)[offset] ^= 1
        return digests

    memory.copy_in = copy_in


def skip_a_layer_group(scene: Scene) -> None:
    """A sender that believes it has written a piece which it has not."""
    post = scene.pair.source.transport.post

    def forgetful(peer: object, source: np.ndarray, landing: np.ndarray, note: bytes) -> object:
        return post(peer, source[:1], landing[:1], note)

    scene.pair.source.transport.post = forgetful


def swap_two_blocks(scene: Scene) -> None:
    """A sender that reads from the wrong block."""
    units = scene.leg.units
    wrong = (*units.blocks[1:], units.blocks[0])
    scene.leg.units = type(units)(wrong, units.num_pool_blocks, units.first_unit, units.num_slots)


def write_one_slot_further(scene: Scene) -> None:
    units = scene.leg.units
    scene.leg.units = type(units)(units.blocks, units.num_pool_blocks, units.first_unit + 1, units.num_slots)


def spoil_source_after_digest(scene: Scene) -> None:
    """The source's block is overwritten between its computation and its write."""
    push = scene.leg.push

    def late(layers: range, blocks: range) -> None:
        block = scene.leg.units.blocks[blocks.start]
        scene.pair.source.memory.words[layers.start, block, 0, 0, 0] ^= 1
        push(layers, blocks)

    scene.leg.push = late


DEFECTS: list[Callable[[Scene], None]] = [
    spoil_landing,
    skip_a_layer_group,
    swap_two_blocks,
    write_one_slot_further,
    spoil_source_after_digest,
]


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("seed", range(10))
def test_no_defect_of_the_path_goes_unnoticed(defect: Callable[[Scene], None], seed: int) -> None:
    scene = _without_ring(seed)
    defect(scene)
    verdict = scene.run()
    assert not verdict.ok
    assert verdict.num_recopies == 3
    scene.close()


def _without_ring(seed: int) -> Scene:
    """Return the first scene from `seed` on whose extent holds at least two blocks and is no ring."""
    while True:
        scene = Scene(local_transports(), seed)
        if scene.ticket.extent.num_slots == len(scene._blocks()) > 1 and len(scene.layers) > 1:
            return scene
        seed += 1000


def test_a_ring_stops_at_the_first_block_that_does_not_match() -> None:
    scene = next(s for s in (Scene(local_transports(), seed) for seed in range(1000)) if s.ticket.extent.num_slots == 2)
    verdicts: list[Verdict] = []
    landed = scene.pair.target.receiver.landed

    def watched(*args: object) -> object:
        future = landed(*args)
        future.add_done_callback(lambda found: verdicts.append(found.result()))
        return future

    scene.pair.target.receiver.landed = watched
    spoil_landing(scene)
    with pytest.raises(AssertionError, match="did not resolve"):
        scene.run()
    assert any(not verdict.ok for verdict in verdicts)
    scene.close()
