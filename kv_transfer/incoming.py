"""One leg as the decode node receives it: what has been copied in, and whether the copies have the promised digests."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from twostep.core.clock import Clock
from twostep.core.digest import Digests
from twostep.core.errors import StaleLeg
from twostep.core.ids import BlockId
from twostep.core.kv_layout import KVLayout
from twostep.core.kv_memory import KVMemory, LandedPiece
from twostep.core.memory import MemoryRegion
from twostep.core.ticket import LandingExtent, Leg, TokenRange
from twostep.kv_transfer.pieces import Coverage, Piece, rectangles
from twostep.kv_transfer.promise import promise

MAX_RECOPIES = 3
"""RDMA may report a write as done before its bytes are visible; a copy that differs is made again this often."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of comparing copies with the source's digests.

    `mismatched` lists (layer, P's block) whose copy never matched. All blocks before `verified_end`, in the layers asked
    about, are verified: a ring's slots up to there may be credited. `copies` tells when how many bytes had been copied in.
    """

    mismatched: tuple[tuple[int, int], ...]
    num_recopies: int
    verified_end: int
    bytes_landed: int
    copies: tuple[tuple[float, int], ...] = field(default=(), compare=False)

    @property
    def ok(self) -> bool:
        return not self.mismatched

    def hidden_share(self, computed_s: float) -> float:
        """Return which share of the bytes had been copied in by `computed_s`, when the prefill ended."""
        hidden = sum(num_bytes for at_s, num_bytes in self.copies if at_s <= computed_s)
        return min(1.0, hidden / self.bytes_landed) if self.bytes_landed else 0.0


@dataclass(slots=True)
class _Claim:
    """The source says that these cells are written and what their digests are."""

    piece: Piece
    digests: Digests
    verdict: "Future[Verdict]" = field(default_factory=promise)
    num_rounds: int = 0


class IncomingLeg:
    """Copies one leg in. Used by the receiver's thread alone.

    `extent_memory` is the landing extent; `source` is the layout in which P's blocks lie there; `table` is the request's
    whole block table on this node.
    """

    def __init__(
        self,
        leg: Leg,
        extent: LandingExtent,
        extent_memory: MemoryRegion,
        missing: TokenRange,
        source: KVLayout,
        table: Sequence[BlockId],
    ) -> None:
        self.leg = leg
        self.extent = extent
        self._memory = extent_memory
        self._missing = missing
        self._source = source
        self._table = tuple(table)
        shape = source.num_layers, source.num_blocks(len(missing))
        self._digests = np.zeros(shape, np.uint64)
        self._copied = Coverage(*shape)
        self._asked = Coverage(*shape)
        self._verified = Coverage(*shape)
        self._to_copy: deque[Piece] = deque()
        self._claims: list[_Claim] = []
        self._num_landed = 0
        self._copies: list[tuple[float, int]] = []

    def hear(self, piece: Piece) -> bool:
        """Note that `piece` has landed; return whether anything of it is new. Raises ValueError outside the leg."""
        self._asked.require_inside(piece)
        return self._ask(piece)

    def claim(self, piece: Piece, digests: Digests) -> "Future[Verdict]":
        """Compare `piece`, which the source has written completely, with `digests` [layer, block].

        What no notification announced is copied now. Raises ValueError when piece or digests do not fit the leg.
        """
        self._asked.require_inside(piece)
        if digests.shape != (len(piece.layers), len(piece.blocks)):
            raise ValueError(f"digests of shape {digests.shape} do not fit {piece}")
        claim = _Claim(piece, digests)
        self._ask(piece)
        self._claims.append(claim)
        return claim.verdict

    def claim_all(self, digests: Digests) -> "Future[Verdict]":
        return self.claim(self._asked.whole, digests)

    @property
    def cell_bytes(self) -> int:
        """One of P's blocks in one layer."""
        return self._source.layer_block_bytes

    @property
    def has_work(self) -> bool:
        return bool(self._to_copy or self._claims)

    def advance(self, memory: KVMemory, max_cells: int, clock: Clock) -> None:
        """Make at most one copy, then answer the claims that can be answered."""
        if self._to_copy:
            piece = self._next_piece(max_cells)
            self._copy(memory, piece)
            self._copies.append((clock(), len(piece) * self.cell_bytes))
        self._claims = [claim for claim in self._claims if not self._answer(claim)]

    def end(self, reason: str) -> None:
        """Answer every open claim with StaleLeg; no copy is made any more."""
        self._to_copy.clear()
        claims, self._claims = self._claims, []
        for claim in claims:
            claim.verdict.set_exception(StaleLeg(f"request {self.leg.request}: {reason}"))

    def _ask(self, piece: Piece) -> bool:
        new = self._asked.missing(piece)
        self._asked.fill(piece)
        self._to_copy.extend(new)
        self._num_landed += sum(map(len, new))
        return bool(new)

    def _next_piece(self, max_cells: int) -> Piece:
        first, *rest = self._to_copy.popleft().split(max_cells)
        self._to_copy.extendleft(reversed(rest))
        return first

    def _copy(self, memory: KVMemory, piece: Piece) -> None:
        landed = LandedPiece(piece.layers, piece.blocks, self._missing, self._source.block_tokens, self.extent.num_slots)
        digests = memory.copy_in(self._memory, landed, self._table)
        self._digests[_cells(piece)] = digests
        self._copied.fill(piece)

    def _answer(self, claim: _Claim) -> bool:
        if not self._copied.covers(claim.piece):
            return False
        wrong = rectangles(
            self._digests[_cells(claim.piece)] != claim.digests, claim.piece.layers.start, claim.piece.blocks.start
        )
        if wrong and claim.num_rounds < MAX_RECOPIES and not self._was_verified(wrong):
            claim.num_rounds += 1
            self._copy_again(wrong)
            return False
        if not wrong:
            self._verified.fill(claim.piece)
        claim.verdict.set_result(self._verdict(claim, wrong))
        return True

    def _was_verified(self, wrong: list[Piece]) -> bool:
        # A verified cell's slot may have been credited and written again: copying it once more would spoil it.
        return any(self._verified.missing(piece) != [piece] for piece in wrong)

    def _copy_again(self, wrong: list[Piece]) -> None:
        for piece in wrong:
            self._copied.remove(piece)
            self._to_copy.append(piece)

    def _verdict(self, claim: _Claim, wrong: list[Piece]) -> Verdict:
        cells = tuple((layer, block) for piece in wrong for layer in piece.layers for block in piece.blocks)
        landed = self._num_landed * self.cell_bytes
        end_block = self._verified.end_block(claim.piece.layers)
        return Verdict(cells, claim.num_rounds, end_block, landed, tuple(self._copies))


def _cells(piece: Piece) -> tuple[slice, slice]:
    return slice(piece.layers.start, piece.layers.stop), slice(piece.blocks.start, piece.blocks.stop)
