"""Each cell of the missing range goes out exactly once, whatever the chunks, the cached prefix and the range's start."""

import random
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from twostep.core.errors import StaleLeg
from twostep.core.ids import BlockId, RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.core.ticket import TokenRange
from twostep.engine.batch import Batch, Chunk
from twostep.engine.engine import Reservation
from twostep.kv_transfer.sender import OutgoingLeg
from twostep.kv_transfer.source_digests import SourceDigests
from twostep.prefill_node.pushes import Pushes

BLOCK = 32
LAYERS = 4


@dataclass
class FakeTicket:
    missing: TokenRange


@dataclass
class FakeOutgoing:
    """Records pushes as (layer, block) cells."""

    ticket: FakeTicket
    cells: list[tuple[int, int]] = field(default_factory=list)
    is_over: bool = False

    def push(self, layers: range, blocks: range) -> None:
        if self.is_over:
            raise StaleLeg("the leg is over")
        self.cells += [(layer, block) for layer in layers for block in blocks]


@dataclass
class FakeDigests:
    added: list[tuple[range, TokenRange]] = field(default_factory=list)

    def add(self, layers: range, tokens: TokenRange, table: Any) -> None:
        self.added.append((layers, tokens))


class Rig:
    def __init__(self, num_tokens: int, cached: int, start: int) -> None:
        request = Request(RequestId("a"), (1,) * num_tokens, SamplingParams(seed=0), StopRules(max_tokens=1))
        self.table = tuple(BlockId(block) for block in range(-(-num_tokens // BLOCK)))
        self.reservation = Reservation(request, self.table, cached)
        self.outgoing = FakeOutgoing(FakeTicket(TokenRange(start, num_tokens)))
        self.digests = FakeDigests()
        self.pushes = Pushes(cast(SourceDigests, self.digests), BLOCK, LAYERS)

    def open(self) -> None:
        self.pushes.open(self.reservation, cast(OutgoingLeg, self.outgoing))

    def write(self, start: int, end: int) -> None:
        """What the engine does in a step: all layer groups of one chunk."""
        chunk = Chunk(RequestId("a"), (1,) * (end - start), start, self.table)
        for first in range(0, LAYERS, 2):
            self.pushes.on_layers(Batch((chunk,)), range(first, first + 2))


@pytest.mark.parametrize("seed", range(100))
def test_every_cell_is_pushed_once(seed: int) -> None:
    rng = random.Random(seed)
    num_tokens = rng.randrange(1, 300)
    last_block = (num_tokens - 1) // BLOCK
    cached, start = (BLOCK * rng.randrange(last_block + 1) for _ in range(2))
    rig = Rig(num_tokens, cached, start)
    rig.open()
    at = cached
    while at < num_tokens:
        end = min(num_tokens, at + rng.randrange(1, 100))
        rig.write(at, end)
        at = end
    num_blocks = -(-(num_tokens - start) // BLOCK)
    assert sorted(rig.outgoing.cells) == [(layer, block) for layer in range(LAYERS) for block in range(num_blocks)]


def test_cached_blocks_go_out_at_once_and_what_d_holds_already_never_does() -> None:
    rig = Rig(num_tokens=150, cached=96, start=32)
    rig.open()
    assert rig.outgoing.cells == [(layer, block) for layer in range(LAYERS) for block in (0, 1)]


def test_the_partial_last_block_goes_out_with_the_last_chunk() -> None:
    rig = Rig(num_tokens=70, cached=0, start=0)
    rig.open()
    rig.write(0, 66)
    assert {block for _, block in rig.outgoing.cells} == {0, 1}
    rig.write(66, 70)
    assert {block for _, block in rig.outgoing.cells} == {0, 1, 2}


def test_tokens_are_digested_even_when_nobody_waits_for_them() -> None:
    rig = Rig(num_tokens=40, cached=0, start=0)
    rig.write(0, 40)
    assert rig.digests.added == [(range(2), TokenRange(0, 40)), (range(2, 4), TokenRange(0, 40))]
    assert rig.outgoing.cells == []


def test_a_leg_that_is_over_takes_no_more_and_harms_no_step() -> None:
    rig = Rig(num_tokens=100, cached=0, start=0)
    rig.open()
    rig.outgoing.is_over = True
    rig.write(0, 50)
    rig.outgoing.is_over = False
    rig.write(50, 100)
    assert rig.outgoing.cells == []
