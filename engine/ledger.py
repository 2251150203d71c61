"""Who holds which block: the picture of the block table from which all accounts are recomputed."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from twostep.core.ids import BlockHash, BlockId, RequestId


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks are free, findable but unreferenced, and referenced."""

    free: int
    cached: int
    referenced: int
    total: int


@dataclass(frozen=True, slots=True)
class Census:
    """How many blocks are free, findable but unreferenced, and referenced; `orphaned` are referenced by nobody alive."""

    free: int
    cached: int
    referenced: int
    orphaned: int
    total: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A living request in the engine's eyes: its phase, and the seconds since it reserved."""

    phase: str
    age_s: float


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one owner holds. An owner that is not alive has the phase "orphaned" and an infinite age."""

    owner: RequestId
    phase: str
    age_s: float
    blocks: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True)
class Ledger:
    census: Census
    entries: tuple[LedgerEntry, ...]


@dataclass(frozen=True, slots=True)
class BlockTable:
    """The pool at one moment: the owners of each block, and the hash of each findable one."""

    owners: tuple[tuple[RequestId, ...], ...]
    hashes: Mapping[BlockId, BlockHash]

    def census(self, alive: Collection[RequestId]) -> Census:
        """Count the blocks; one is orphaned when none of its owners is in `alive`."""
        total = len(self.owners)
        referenced = total - self.owners.count(())
        cached = sum(not self.owners[block] for block in self.hashes)
        orphaned = sum(not any(owner in alive for owner in owners) for owners in filter(None, self.owners))
        return Census(total - referenced - cached, cached, referenced, orphaned, total)

    def holdings(self) -> dict[RequestId, tuple[BlockId, ...]]:
        """Return each owner's blocks in ascending order."""
        held: defaultdict[RequestId, list[BlockId]] = defaultdict(list)
        for block, owners in enumerate(self.owners):
            for owner in owners:
                held[owner].append(BlockId(block))
        return {owner: tuple(blocks) for owner, blocks in held.items()}

    def ledger(self, holders: Mapping[RequestId, Holder]) -> Ledger:
        """List every owner and every living holder, with or without blocks."""
        holdings = self.holdings()
        orphan = Holder("orphaned", math.inf)
        known = {owner: holders.get(owner, orphan) for owner in (*holders, *holdings)}
        entries = tuple(LedgerEntry(owner, h.phase, h.age_s, holdings.get(owner, ())) for owner, h in known.items())
        return Ledger(self.census(holders), entries)
