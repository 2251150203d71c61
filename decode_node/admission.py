"""Decides whether a request fits now, and takes all it needs or nothing: KV blocks, a batch slot, landing space."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm

from twostep.core.block_hash import token_digest
from twostep.core.clock import Clock
from twostep.core.ids import NodeRef
from twostep.core.kv_layout import KVLayout
from twostep.core.ticket import Leg, Ticket, TokenRange
from twostep.core.turnover import HoldMeter, Supply
from twostep.decode_node.handoff import ExpectedLeg, Handoff
from twostep.decode_node.orders import Granted, Source
from twostep.decode_node.progress import ProgressWatch
from twostep.decode_node.wait_estimate import Demand, Supplies, estimate_s
from twostep.engine.engine import Busy, Engine, Reservation
from twostep.kv_transfer.landing import LandingPool, source_layout

REGISTRATION = 1
"""The landing pool is registered once in a process's life."""


class Lacking(enum.StrEnum):
    """What a request may wait for beside what the engine has."""

    SHARE = "share"
    LANDING = "landing"
    PAIR = "pair"


@dataclass(frozen=True, slots=True)
class Limits:
    """`unattached_share` of all blocks is the most that requests whose KV is not there yet may hold together.

    `pair_bytes` is the most landing space that the handoffs of one prefill node hold together.
    """

    unattached_share: float
    pair_bytes: int


class Admission:
    """Takes from the engine and the landing pool on behalf of a handoff. `unattached_holds` tells its pace."""

    def __init__(
        self,
        node: NodeRef,
        engine: Engine,
        landing: LandingPool,
        unattached_holds: HoldMeter,
        limits: Limits,
        clock: Clock,
    ) -> None:
        self._node = node
        self._engine = engine
        self._landing = landing
        self._unattached_holds = unattached_holds
        self._limits = limits
        self._clock = clock
        self._layout = engine.runner.kv.layout
        self._share_blocks = int(engine.runner.kv.num_blocks * limits.unattached_share)

    def take(self, handoff: Handoff, unattached_blocks: int) -> Granted:
        """Fill `reservation` and `leg` of `handoff`. Blocks of an earlier attempt are kept.

        Raises engine.Busy, having taken nothing, when there is no room now; ServingError when there never will be.
        """
        if handoff.reservation is not None:
            return self._grant(handoff, handoff.reservation)
        if handoff.order.source:
            self._require_share(handoff, unattached_blocks)
            self._require_landing(handoff, handoff.order.source)
        reservation = self._engine.take(handoff.prepared, align_tokens=self._alignment(handoff.order.source))
        try:
            granted = self._grant(handoff, reservation)
        except BaseException:
            self._engine.release(handoff.id)
            raise
        handoff.reservation = reservation
        return granted

    def can_refill(self, handoff: Handoff, source: Source | None) -> bool:
        """Return whether `source` can fill the blocks that an earlier attempt has taken: where they begin must suit its own."""
        held = handoff.reservation
        return held is not None and held.cached_tokens % self._alignment(source) == 0

    def estimate_s(self, waiting: Iterable[Handoff], unattached_blocks: int) -> float | None:
        """Return in how many seconds all of `waiting` will have been admitted; None while nothing is known about the pace."""
        engine = self._engine.supplies()
        free_share, pace_s = self._share_blocks - unattached_blocks, self._unattached_holds.mean_s
        share = Supply(free_share, unattached_blocks, pace_s)
        return estimate_s(map(self._demand, waiting), Supplies(engine.blocks, engine.places, self._landing.supply(), share))

    def _demand(self, handoff: Handoff) -> Demand:
        source, is_new = handoff.order.source, handoff.reservation is None
        cached = handoff.reservation.cached_tokens if handoff.reservation else 0
        num_bytes = self._extent(self._missing(handoff, cached), source).num_bytes if source else 0
        return Demand(blocks=self._num_blocks(handoff) if is_new else 0, places=int(is_new), landing_bytes=num_bytes)

    def _grant(self, handoff: Handoff, reservation: Reservation) -> Granted:
        source = handoff.order.source
        if source is None:
            return Granted(None, reservation.cached_tokens)
        leg = Leg(handoff.id, handoff.order.attempt, source.node, self._node)
        handoff.leg = self._lend(leg, self._missing(handoff, reservation.cached_tokens), source)
        return Granted(self._ticket(handoff, handoff.leg), reservation.cached_tokens)

    def _lend(self, leg: Leg, missing: TokenRange, source: Source) -> ExpectedLeg:
        wanted = self._extent(missing, source)
        self._require_pair(wanted, source.node)
        layout = wanted.layout
        extent = self._landing.lend(layout.layer_block_bytes, layout.num_layers, wanted.num_slots, leg)
        if extent is None:
            raise _no_landing(wanted)
        num_bytes = layout.num_blocks(len(missing)) * layout.block_bytes
        return ExpectedLeg(leg, extent, missing, num_bytes, ProgressWatch(self._clock()))

    def _ticket(self, handoff: Handoff, expected: ExpectedLeg) -> Ticket:
        geometry = self._engine.runner.geometry
        return Ticket(
            leg=expected.id,
            missing=expected.missing,
            token_digest=token_digest(handoff.order.request.tokens),
            extent=expected.extent,
            registration=REGISTRATION,
            first_head=geometry.first_head,
            end_head=geometry.end_head,
            cache_salt=handoff.order.request.cache_salt,
            remaining_s=handoff.deadline - self._clock(),
        )

    def _alignment(self, source: Source | None) -> int:
        """The missing range starts at a block boundary of both nodes: P never fills a block that others already share."""
        return lcm(self._layout.block_tokens, source.geometry.block_tokens) if source else self._layout.block_tokens

    def _require_share(self, handoff: Handoff, unattached_blocks: int) -> None:
        wanted, share = self._num_blocks(handoff), self._share_blocks
        if unattached_blocks and unattached_blocks + wanted > share:
            held = f"requests without KV hold {unattached_blocks} blocks"
            raise Busy(Lacking.SHARE, f"{held}, {wanted} more would be over {share}")

    def _require_landing(self, handoff: Handoff, source: Source) -> None:
        """Look before any block is taken: taking blocks in vain would cost cached ones."""
        cached = self._engine.num_cached_tokens(handoff.prepared, align_tokens=self._alignment(source))
        wanted = self._extent(self._missing(handoff, cached), source)
        self._require_pair(wanted, source.node)
        if self._landing.find(wanted.num_bytes, wanted.layout.layer_block_bytes) is None:
            raise _no_landing(wanted)

    def _require_pair(self, wanted: "_Extent", source: NodeRef) -> None:
        held, limit = self._landing.bytes_of(source), self._limits.pair_bytes
        if held and held + wanted.num_bytes > limit:
            raise Busy(Lacking.PAIR, f"{source} may write to {held} bytes, {wanted.num_bytes} more would be over {limit}")

    def _extent(self, missing: TokenRange, source: Source) -> "_Extent":
        layout = source_layout(self._layout, source.geometry)
        num_blocks = layout.num_blocks(len(missing))
        return _Extent(layout, self._landing.num_slots(layout.layer_block_bytes, layout.num_layers, num_blocks))

    def _missing(self, handoff: Handoff, cached_tokens: int) -> TokenRange:
        return TokenRange(cached_tokens, len(handoff.order.request.tokens))

    def _num_blocks(self, handoff: Handoff) -> int:
        return self._layout.num_blocks(handoff.prepared.wanted_tokens(self._engine.max_tokens))


@dataclass(frozen=True, slots=True)
class _Extent:
    """The landing space that a leg asks for: `num_slots` blocks in the source's layout."""

    layout: KVLayout
    num_slots: int

    @property
    def num_bytes(self) -> int:
        return self.num_slots * self.layout.block_bytes


def _no_landing(wanted: _Extent) -> Busy:
    return Busy(Lacking.LANDING, f"{wanted.num_bytes} bytes of landing space wanted")
