"""Decides whether a request fits now, and takes all it needs or nothing: KV blocks, a batch slot, landing space."""

from dataclasses import dataclass
from math import lcm

from twostep.core.block_hash import token_digest
from twostep.core.clock import Clock
from twostep.core.ids import NodeRef
from twostep.core.ticket import Leg, Ticket, TokenRange
from twostep.decode_node.handoff import ExpectedLeg, Handoff
from twostep.decode_node.orders import Granted, Source
from twostep.decode_node.progress import ProgressWatch
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
    """Takes from the engine and the landing pool on behalf of a handoff."""

    def __init__(self, node: NodeRef, engine: Engine, landing: LandingPool, limits: Limits, clock: Clock) -> None:
        self._node = node
        self._engine = engine
        self._landing = landing
        self._limits = limits
        self._clock = clock
        self._layout = engine.runner.kv.layout

    def take(self, handoff: Handoff, unattached_blocks: int) -> Granted:
        """Fill `reservation` and `leg` of `handoff`. Blocks of an earlier attempt are kept.

        Raises engine.Busy, having taken nothing, when there is no room now; ServingError when there never will be.
        """
        if handoff.reservation is not None:
            return self._grant(handoff, handoff.reservation)
        self._require_share(handoff, unattached_blocks)
        reservation = self._engine.reserve(
            handoff.order.request, growth_tokens=self._limits.growth_tokens, align_tokens=self._alignment(handoff.order.source)
        )
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

    def _grant(self, handoff: Handoff, reservation: Reservation) -> Granted:
        source = handoff.order.source
        if source is None:
            return Granted(None, reservation.cached_tokens)
        leg = Leg(handoff.id, handoff.order.attempt, source.node, self._node)
        missing = TokenRange(reservation.cached_tokens, len(handoff.order.request.tokens))
        handoff.leg = self._lend(leg, missing, source)
        return Granted(self._ticket(handoff, handoff.leg), reservation.cached_tokens)

    def _lend(self, leg: Leg, missing: TokenRange, source: Source) -> ExpectedLeg:
        layout = source_layout(self._layout, source.geometry)
        num_blocks = layout.num_blocks(len(missing))
        num_slots = self._landing.num_slots(layout.layer_block_bytes, layout.num_layers, num_blocks)
        extent = self._landing.lend(layout.layer_block_bytes, layout.num_layers, num_slots, leg)
        if extent is None:
            raise Busy(f"{num_slots * layout.block_bytes} bytes of landing space wanted")
        return ExpectedLeg(leg, extent, missing, num_blocks * layout.block_bytes, ProgressWatch(self._clock()))

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
        wanted = self._layout.num_blocks(len(handoff.order.request.tokens) + self._limits.growth_tokens)
        share = int(self._engine.runner.kv.num_blocks * self._limits.unattached_share)
        if unattached_blocks and unattached_blocks + wanted > share:
            raise Busy(f"requests without KV hold {unattached_blocks} blocks, {wanted} more would be over {share}")
