"""Lends pieces of the landing pool, the only memory that peers write into. Accounting only; one thread, its owner's.

A piece whose writer has proved that nothing is in flight is lent again at once; any other only after a cooldown.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from twostep.core.clock import Clock
from twostep.core.fingerprint import Geometry
from twostep.core.ids import Generation, NodeRef
from twostep.core.kv_layout import KVLayout
from twostep.core.ticket import LandingExtent, Leg
from twostep.core.turnover import HoldMeter, Supply

LandingOwner = Leg | NodeRef
"""The leg that fills an extent, or the node that probes the path with one."""


class LandingPhase(enum.StrEnum):
    LENT = "lent"
    DRAINING = "draining"
    """Given back without proof: a late write may still land until the cooldown is over."""


@dataclass(frozen=True, slots=True)
class Loan:
    """One extent and who answers for it. `since_s` is when the phase began, `lent_s` when it was lent, by the pool's clock."""

    extent: LandingExtent
    owner: LandingOwner
    phase: LandingPhase
    since_s: float
    lent_s: float

    @property
    def end(self) -> int:
        return self.extent.offset + self.extent.num_bytes

    @property
    def source(self) -> NodeRef:
        """The node that writes here."""
        return self.owner if isinstance(self.owner, NodeRef) else self.owner.source


@dataclass(frozen=True, slots=True)
class LandingCensus:
    """Bytes by state, recomputed from the table of loans; they add up to the pool."""

    total_bytes: int
    free_bytes: int
    lent_bytes: int
    draining_bytes: int


class LandingPool:
    """The landing pool of `num_bytes`; one loan takes at most `max_share` of it, a longer range gets a ring."""

    def __init__(self, num_bytes: int, *, cooldown_s: float, clock: Clock, max_share: float = 1.0) -> None:
        self._num_bytes = num_bytes
        self._cooldown_s = cooldown_s
        self._clock = clock
        self._max_loan_bytes = int(num_bytes * max_share)
        self._loans: dict[Generation, Loan] = {}
        self._holds = HoldMeter()
        self._last_generation = 0
        self.unproven_reuse = 0
        """Extents that became free on the word of the cooldown alone."""

    @property
    def last_generation(self) -> Generation:
        """Every extent lent so far has this generation or a lower one."""
        return Generation(self._last_generation)

    def num_slots(self, unit_bytes: int, num_layers: int, num_blocks: int) -> int:
        """Return how many slots a loan for `num_blocks` blocks gets: one each, or fewer (a ring); 0 when none ever fits."""
        return min(num_blocks, self._max_loan_bytes // (unit_bytes * num_layers))

    def lend(self, unit_bytes: int, num_layers: int, num_slots: int, owner: LandingOwner) -> LandingExtent | None:
        """Lend `[num_layers][num_slots]` units, aligned to the unit, or return None when there is no room now.

        Raises ValueError without at least one slot.
        """
        if num_slots < 1:
            raise ValueError(f"an extent of {num_slots} slots takes nothing")
        num_bytes = unit_bytes * num_layers * num_slots
        offset = self.find(num_bytes, unit_bytes)
        if offset is None:
            return None
        self._last_generation += 1
        extent, now = LandingExtent(offset, num_bytes, num_slots, Generation(self._last_generation)), self._clock()
        self._loans[extent.generation] = Loan(extent, owner, LandingPhase.LENT, now, now)
        return extent

    def find(self, num_bytes: int, unit_bytes: int) -> int | None:
        """Return where a loan of `num_bytes` would lie now, or None when there is no room."""
        self._end_cooldowns()
        for start, end in self._gaps():
            aligned = -(-start // unit_bytes) * unit_bytes
            if aligned + num_bytes <= end:
                return aligned
        return None

    def give_back(self, extent: LandingExtent, *, proven: bool) -> bool:
        """End a loan: at once when `proven` (every write of it is known to be over), else after the cooldown.

        Idempotent; returns whether the loan was known. Proof that comes during the cooldown ends it.
        """
        loan = self._loans.get(extent.generation)
        if loan is None:
            return False
        if proven:
            self._end(loan)
        elif loan.phase is LandingPhase.LENT:
            draining = replace(loan, phase=LandingPhase.DRAINING, since_s=self._clock())
            self._loans[extent.generation] = draining
        return True

    def census(self) -> LandingCensus:
        self._end_cooldowns()
        sizes = dict.fromkeys(LandingPhase, 0)
        for loan in self._loans.values():
            sizes[loan.phase] += loan.extent.num_bytes
        free = sum(end - start for start, end in self._gaps())
        return LandingCensus(self._num_bytes, free, sizes[LandingPhase.LENT], sizes[LandingPhase.DRAINING])

    def bytes_of(self, source: NodeRef) -> int:
        """Return how much one node may still write to, given back without proof or not."""
        self._end_cooldowns()
        return sum(loan.extent.num_bytes for loan in self._loans.values() if loan.source == source)

    def supply(self) -> Supply:
        """Return how many bytes are free and not, and for how long bytes were lent lately."""
        free = self.census().free_bytes
        return Supply(free, self._num_bytes - free, self._holds.mean_s)

    def cooldown_left_s(self, loan: Loan) -> float:
        """Return how long an extent that drains still rests; 0 for one that is lent."""
        rests = loan.phase is LandingPhase.DRAINING
        return max(0.0, loan.since_s + self._cooldown_s - self._clock()) if rests else 0.0

    def ledger(self) -> list[Loan]:
        """Return every extent that is not free, in order of offset."""
        self._end_cooldowns()
        return sorted(self._loans.values(), key=lambda loan: loan.extent.offset)

    def audit(self) -> tuple[str, ...]:
        """Recompute the accounts; returns what does not add up, a line each."""
        return audit_loans(self.ledger(), self._num_bytes)

    def _end_cooldowns(self) -> None:
        over = self._clock() - self._cooldown_s
        for loan in list(self._loans.values()):
            if loan.phase is LandingPhase.DRAINING and loan.since_s <= over:
                self._end(loan)
                self.unproven_reuse += 1

    def _end(self, loan: Loan) -> None:
        del self._loans[loan.extent.generation]
        self._holds.record(loan.extent.num_bytes, self._clock() - loan.lent_s)

    def _gaps(self) -> list[tuple[int, int]]:
        taken = sorted((loan.extent.offset, loan.end) for loan in self._loans.values())
        edges = [(0, 0), *taken, (self._num_bytes, self._num_bytes)]
        return [(before[1], after[0]) for before, after in pairwise(edges) if before[1] < after[0]]


def audit_loans(loans: Sequence[Loan], num_bytes: int) -> tuple[str, ...]:
    """Return which extents lie outside a pool of `num_bytes` or on one another; loans are in order of offset."""
    outside = (loan for loan in loans if not 0 <= loan.extent.offset < loan.end <= num_bytes)
    doubled = (pair for pair in pairwise(loans) if pair[0].end > pair[1].extent.offset)
    return (
        *(f"extent {loan.extent.generation} of {loan.owner} lies outside the landing pool" for loan in outside),
        *(f"extents {one.extent.generation} and {other.extent.generation} overlap" for one, other in doubled),
    )


def source_layout(own: KVLayout, source: Geometry) -> KVLayout:
    """Return the layout in which a peer's blocks arrive: its block size and heads, everything else as ours."""
    return replace(own, num_kv_heads=source.end_head - source.first_head, block_tokens=source.block_tokens)
