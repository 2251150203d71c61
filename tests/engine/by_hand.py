"""A handoff without sender, wire or receiver: KV is carried from one engine to another by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm
from random import Random

import numpy as np

from twostep.core.digest import Words
from twostep.core.ids import Attempt
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.request import Request
from twostep.core.ticket import TokenRange
from twostep.engine.engine import Engine, Reservation
from twostep.engine.kv_cache import HostKVCache

ATTEMPT = Attempt(1)
Spoil = Callable[[Words, LandedPiece], None]


@dataclass(frozen=True, slots=True)
class Leg:
    """One request on its way: what D reserved and still misses, and what P reserved."""

    there: Reservation
    here: Reservation
    missing: TokenRange


class Carrier:
    """Carries from P's blocks through a landing extent of `num_slots` (0: one for each block) into D's blocks.

    Pieces come in random order as far as the ring allows. `spoil` may change what has landed, before it is copied in.
    """

    def __init__(
        self, source: Engine, destination: Engine, *, seed: int = 0, num_slots: int = 0, spoil: Spoil | None = None
    ) -> None:
        self.source, self.destination = source, destination
        self.num_mismatched = 0
        self._noise = Random(seed)
        self._num_slots = num_slots
        self._spoil = spoil

    def open(self, request: Request) -> Leg:
        """Reserve on D, then on P, and start P's leg."""
        align = lcm(_layout(self.source).block_tokens, _layout(self.destination).block_tokens)
        there = self.destination.reserve(request, growth_tokens=1, align_tokens=align)
        here = self.source.reserve(request, growth_tokens=0)
        self.source.start(request.id, attempt=ATTEMPT, max_draws=1)
        return Leg(there, here, TokenRange(there.cached_tokens, len(request.tokens)))

    def carry(self, leg: Leg) -> None:
        """Move all missing KV of a computed leg, piece by piece."""
        num_blocks = _layout(self.source).num_blocks(len(leg.missing))
        num_slots = self._num_slots or num_blocks
        landing = self._noisy_landing(num_slots)
        for blocks in self._runs(num_blocks, num_slots):
            for layers in self._layer_groups():
                piece = LandedPiece(layers, blocks, leg.missing, _layout(self.source).block_tokens, num_slots)
                self._carry_piece(leg, piece, landing)

    def _carry_piece(self, leg: Leg, piece: LandedPiece, landing: Words) -> None:
        source, destination = _cache(self.source), _cache(self.destination)
        layers = slice(piece.layers.start, piece.layers.stop)
        first = leg.missing.start // piece.source_block_tokens
        for block in piece.source_blocks:
            landing[layers, block % piece.num_slots] = source.words[layers, leg.here.table[first + block]]
        if self._spoil:
            self._spoil(landing, piece)
        extent = MemoryRegion(landing.ctypes.data, landing.nbytes)
        copied = destination.copy_in(extent, piece, leg.there.table)
        tokens = TokenRange(piece.tokens_of(piece.source_blocks[0]).start, piece.tokens_of(piece.source_blocks[-1]).end)
        self.num_mismatched += int((copied != source.digest(piece.layers, tokens, leg.here.table)).sum())

    def _noisy_landing(self, num_slots: int) -> Words:
        _, _, *inner = _layout(self.source).pool_shape(1)
        shape = (_layout(self.source).num_layers, num_slots, *inner)
        return np.random.default_rng(self._noise.randrange(99)).integers(0, 1 << 32, shape, dtype=np.uint32)

    def _runs(self, num_blocks: int, num_slots: int) -> list[range]:
        """Cut the blocks into runs of at most a lap; without a ring, shuffle them."""
        runs: list[range] = []
        start = 0
        while start < num_blocks:
            end = min(num_blocks, start + self._noise.randint(1, num_slots))
            runs.append(range(start, end))
            start = end
        if num_slots >= num_blocks:
            self._noise.shuffle(runs)
        return runs

    def _layer_groups(self) -> Sequence[range]:
        size, num_layers = self.source.runner.geometry.layer_group, _layout(self.source).num_layers
        return [range(first, min(first + size, num_layers)) for first in range(0, num_layers, size)]


def _layout(engine: Engine) -> KVLayout:
    return engine.runner.kv.layout


def _cache(engine: Engine) -> HostKVCache:
    assert isinstance(engine.runner.kv, HostKVCache)
    return engine.runner.kv
