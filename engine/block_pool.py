"""Which block is whose: reference counts, the prefix cache, and what is evicted next. Accounting only, no memory.

Not safe for threads by itself: the engine's lock guards it.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from twostep.core.block_news import BlockNews
from twostep.core.ids import BlockHash, BlockId, RequestId
from twostep.engine.audit import PoolTables
from twostep.engine.block_log import BlockLog
from twostep.engine.ledger import BlockTable

LOG_ROUNDS = 2
"""How many times the whole pool may change before somebody who follows the changes has to start anew."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The blocks an owner was given, in the order of its tokens; the first `num_cached` hold a known prefix."""

    blocks: tuple[BlockId, ...]
    num_cached: int


class BlockPool:
    """`num_blocks` blocks. A block's reference count is its number of owners.

    A freed block keeps its hash: it can be hit until it is reused. Blocks without a hash are reused first, then the findable
    ones, least recently freed first. What is taken at once comes in ascending order: neighbours travel in one write.
    """

    def __init__(self, num_blocks: int) -> None:
        self._owners: list[tuple[RequestId, ...]] = [()] * num_blocks
        self._hashes: dict[BlockId, BlockHash] = {}
        self._by_hash: dict[BlockHash, BlockId] = {}
        self._before: dict[BlockHash, BlockHash | None] = {}
        """What precedes each findable block in its prefix."""
        self._distrusted: set[RequestId] = set()
        """Owners of blocks that were purged: nobody is to find what they compute from them."""
        self._free = [BlockId(block) for block in reversed(range(num_blocks))]
        self._evictable: OrderedDict[BlockId, None] = OrderedDict()
        self._held: dict[RequestId, list[BlockId]] = {}
        self._log = BlockLog(LOG_ROUNDS * num_blocks)

    @property
    def num_blocks(self) -> int:
        return len(self._owners)

    @property
    def num_available(self) -> int:
        """Blocks that nobody references, findable ones included."""
        return len(self._free) + len(self._evictable)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody references and a prefix may hit."""
        return len(self._evictable)

    def num_held_by(self, owners: Collection[RequestId]) -> int:
        """Return how many blocks become available when all of `owners` release theirs; others may share some."""
        held = {block for owner in owners for block in self._held.get(owner, ())}
        return sum(all(owner in owners for owner in self._owners[block]) for block in held)

    def news(self, first: int) -> BlockNews:
        """Return what has happened to the findable blocks since event `first`, or all of them when that is too long ago."""
        return self._log.since(first) or BlockNews(0, self._log.next, tuple(self._by_hash), is_snapshot=True)

    def table(self) -> BlockTable:
        """Return a picture of the pool at this moment."""
        return BlockTable(tuple(self._owners), dict(self._hashes))

    def tables(self) -> PoolTables:
        """Return everything that the pool keeps, for an audit."""
        return PoolTables(
            owners=tuple(self._owners),
            held={owner: tuple(blocks) for owner, blocks in self._held.items()},
            free=tuple(self._free),
            evictable=tuple(self._evictable),
            hashes=dict(self._hashes),
            by_hash=dict(self._by_hash),
        )

    def reserve(
        self,
        owner: RequestId,
        prefix: Sequence[BlockHash],
        num_blocks: int,
        *,
        hit_step: int = 1,
        spare: int = 0,
    ) -> Holding | None:
        """Reference the longest known part of `prefix` and take fresh blocks up to `num_blocks`, in one step.

        A hit is a multiple of `hit_step` blocks. Returns None, and takes nothing, when fewer than `spare` blocks would stay
        available. Raises ValueError when the owner holds blocks already.
        """
        if owner in self._held:
            raise ValueError(f"{owner} holds blocks already")
        hits = [self._by_hash[known] for known in prefix[: self.num_hits(prefix[:num_blocks], hit_step=hit_step)]]
        num_idle_hits = sum(not self._owners[block] for block in hits)
        if num_blocks - len(hits) + num_idle_hits + spare > self.num_available:
            return None
        self._held[owner] = []
        self._reference(owner, hits)
        self.grow(owner, num_blocks - len(hits))
        return Holding(tuple(self._held[owner]), len(hits))

    def num_hits(self, prefix: Sequence[BlockHash], *, hit_step: int = 1) -> int:
        """Return how many blocks of `prefix`, a multiple of `hit_step`, are known."""
        num_known = sum(1 for _ in takewhile(self._by_hash.__contains__, prefix))
        return num_known // hit_step * hit_step

    def grow(self, owner: RequestId, num_blocks: int) -> list[BlockId]:
        """Take `num_blocks` more blocks for `owner`. Raises ValueError, and takes nothing, when there are fewer."""
        if num_blocks > self.num_available:
            raise ValueError(f"{num_blocks} blocks wanted, {self.num_available} are available")
        blocks = self._take(num_blocks)
        self._reference(owner, blocks)
        return blocks

    def release(self, owner: RequestId) -> None:
        """Drop all references of `owner`. Of a chain, its end is evicted first."""
        self._distrusted.discard(owner)
        for block in reversed(self._held.pop(owner)):
            self._owners[block] = tuple(other for other in self._owners[block] if other != owner)
            if not self._owners[block]:
                self._give_back(block)

    def publish(self, block: BlockId, known_as: BlockHash, before: BlockHash | None = None) -> None:
        """Make a referenced, fully computed block findable, behind the one `before` it. Of equal blocks only the first is."""
        if known_as not in self._by_hash and block not in self._hashes and self._distrusted.isdisjoint(self._owners[block]):
            self._hashes[block] = known_as
            self._by_hash[known_as] = block
            self._before[known_as] = before
            self._log.note_stored(known_as)

    def purge(self, blocks: Iterable[BlockId]) -> None:
        """Make blocks unfindable whose contents are not to be trusted, and all that was or will be computed from them.

        What follows them in a prefix would otherwise be found again once they have been computed anew.
        """
        purged = set(blocks)
        self._distrusted.update(owner for block in purged for owner in self._owners[block])
        for known_as in self._computed_from([self._hashes[block] for block in purged if block in self._hashes]):
            block = self._by_hash[known_as]
            self._forget(block)
            if block in self._evictable:
                del self._evictable[block]
                self._free.append(block)

    def _computed_from(self, purged: Collection[BlockHash]) -> set[BlockHash]:
        """Return `purged` with all that is findable behind them, or behind what is not findable any more."""
        behind: defaultdict[BlockHash | None, list[BlockHash]] = defaultdict(list)
        for known_as, before in self._before.items():
            behind[before].append(known_as)
        left = [*purged, *(known_as for known_as, before in self._before.items() if before and before not in self._by_hash)]
        found: set[BlockHash] = set()
        while left:
            known_as = left.pop()
            if known_as not in found:
                found.add(known_as)
                left += behind[known_as]
        return found

    def _forget(self, block: BlockId) -> None:
        known_as = self._hashes.pop(block)
        del self._by_hash[known_as], self._before[known_as]
        self._log.note_evicted(known_as)

    def _reference(self, owner: RequestId, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            self._evictable.pop(block, None)
            self._owners[block] += (owner,)
            self._held[owner].append(block)

    def _take(self, num_blocks: int) -> list[BlockId]:
        return sorted(self._free.pop() if self._free else self._evict() for _ in range(num_blocks))

    def _evict(self) -> BlockId:
        block, _ = self._evictable.popitem(last=False)
        self._forget(block)
        return block

    def _give_back(self, block: BlockId) -> None:
        if block in self._hashes:
            self._evictable[block] = None
        else:
            self._free.append(block)
