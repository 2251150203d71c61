"""Decides whether a request can be seated now, and takes all it needs or nothing: KV blocks, a batch slot, landing space."""

from dataclasses import dataclass
from math import lcm

from twostep.core.block_hash import token_digest
from twostep.core.clock import Clock
from twostep.core.ids import NodeRef
from twostep.core.ticket import Leg, Ticket, TokenRange
from twostep.decode_node.orders import Granted, Source
from twostep.decode_node.progress import ProgressWatch
from twostep.decode_node.seat import ExpectedLeg, Seat
from twostep.engine.engine import Busy, Engine, Reservation
from twostep.kv_transfer.landing import LandingPool, source_layout

REGISTRATION = 1
"""The landing pool is registered once in a process's life."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`unattached_share` of all blocks is the most that requests whose KV is not there yet may hold together."""

    growth_tokens: int
    unattached_share: float


class Admission:
    """Takes from the engine and the landing pool on behalf of a seat."""

    def __init__(self, node: NodeRef, engine: Engine, landing: LandingPool, limits: Limits, clock: Clock) -> None:
        self._node = node
        self._engine = engine
        self._landing = landing
        self._limits = limits
        self._clock = clock
        self._layout = engine.runner.kv.layout

    def take(self, seat: Seat, unattached_blocks: int) -> Granted:
        """Fill `reservation` and `leg` of `seat`. Blocks of an earlier attempt are kept.

        Raises engine.Busy, having taken nothing, when there is no room now; ServingError when there never will be.
        """
        if seat.reservation is not None:
            return self._grant(seat, seat.reservation)
        self._require_share(seat, unattached_blocks)
        reservation = self._engine.reserve(
            seat.order.request, growth_tokens=self._limits.growth_tokens, align_tokens=self._alignment(seat.order.source)
        )
        try:
            granted = self._grant(seat, reservation)
        except BaseException:
            self._engine.release(seat.id)
            raise
        seat.reservation = reservation
        return granted

    def _grant(self, seat: Seat, reservation: Reservation) -> Granted:
        source = seat.order.source
        if source is None:
            return Granted(None, reservation.cached_tokens)
        leg = Leg(seat.id, seat.order.attempt, source.node, self._node)
        missing = TokenRange(reservation.cached_tokens, len(seat.order.request.tokens))
        seat.leg = self._lend(leg, missing, source)
        return Granted(self._ticket(seat, seat.leg), reservation.cached_tokens)

    def _lend(self, leg: Leg, missing: TokenRange, source: Source) -> ExpectedLeg:
        layout = source_layout(self._layout, source.geometry)
        num_blocks = layout.num_blocks(len(missing))
        num_slots = self._landing.num_slots(layout.layer_block_bytes, layout.num_layers, num_blocks)
        extent = self._landing.lend(layout.layer_block_bytes, layout.num_layers, num_slots, leg)
        if extent is None:
            raise Busy(f"{num_slots * layout.block_bytes} bytes of landing space wanted")
        return ExpectedLeg(leg, extent, missing, num_blocks * layout.block_bytes, ProgressWatch(self._clock()))

    def _ticket(self, seat: Seat, expected: ExpectedLeg) -> Ticket:
        geometry = self._engine.runner.geometry
        return Ticket(
            leg=expected.leg,
            missing=expected.missing,
            token_digest=token_digest(seat.order.request.tokens),
            extent=expected.extent,
            registration=REGISTRATION,
            first_head=geometry.first_head,
            end_head=geometry.end_head,
            cache_salt=seat.order.request.cache_salt,
            remaining_s=seat.deadline - self._clock(),
        )

    def _alignment(self, source: Source | None) -> int:
        """The missing range starts at a block boundary of both nodes: P never fills a block that others already share."""
        return lcm(self._layout.block_tokens, source.geometry.block_tokens) if source else self._layout.block_tokens

    def _require_share(self, seat: Seat, unattached_blocks: int) -> None:
        wanted = self._layout.num_blocks(len(seat.order.request.tokens) + self._limits.growth_tokens)
        share = int(self._engine.runner.kv.num_blocks * self._limits.unattached_share)
        if unattached_blocks and unattached_blocks + wanted > share:
            raise Busy(f"requests without KV hold {unattached_blocks} blocks, {wanted} more would be over {share}")
