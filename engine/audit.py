"""Recomputes all accounts of the block pool from its tables and names every difference. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from twostep.core.ids import BlockHash, BlockId, RequestId

Held = Mapping[RequestId, Sequence[BlockId]]


@dataclass(frozen=True, slots=True)
class PoolTables:
    """A block pool at one moment, all of it: `hashes` and `by_hash` are the prefix cache in both directions."""

    owners: Sequence[tuple[RequestId, ...]]
    held: Held
    free: Sequence[BlockId]
    evictable: Collection[BlockId]
    hashes: Mapping[BlockId, BlockHash]
    by_hash: Mapping[BlockHash, BlockId]


def audit_pool(pool: PoolTables, sequences: Held) -> tuple[str, ...]:
    """Return what does not add up, a line each; empty when all is well. `sequences` are the blocks of each sequence."""
    return (*_states(pool), *_references(pool), *_cache(pool), *_sequences(pool, sequences))


def _states(pool: PoolTables) -> Iterator[str]:
    """Each block is either free, cached, or referenced."""
    referenced = {block for block, owners in enumerate(pool.owners) if owners}
    places = Counter(chain(pool.free, pool.evictable, referenced))
    total, counted = len(pool.owners), places.total()
    if counted != total:
        parts = f"{len(pool.free)} free + {len(pool.evictable)} cached + {len(referenced)} referenced"
        yield f"{parts} = {counted} blocks, the pool has {total}"
    if wrong := sorted({block for block, count in places.items() if count != 1} | (places.keys() ^ set(range(total)))):
        yield f"blocks {_some(wrong)} are not in exactly one place"


def _references(pool: PoolTables) -> Iterator[str]:
    """A block is referenced by those who hold it."""
    told = Counter((block, owner) for block, owners in enumerate(pool.owners) for owner in owners)
    held = Counter((int(block), owner) for owner, blocks in pool.held.items() for block in blocks)
    for (block, owner), count in (told - held).items():
        yield f"block {block} counts {count} references of {owner} too many"
    for (block, owner), count in (held - told).items():
        yield f"block {block} counts {count} references of {owner} too few"


def _cache(pool: PoolTables) -> Iterator[str]:
    """The prefix cache finds exactly the blocks that carry a hash; what is cached can be found, what is free cannot."""
    if pool.by_hash != {known_as: block for block, known_as in pool.hashes.items()}:
        yield f"{len(pool.by_hash)} prefixes can be found, {len(pool.hashes)} blocks carry a hash: they differ"
    if strange := sorted(block for block in pool.hashes if not 0 <= block < len(pool.owners)):
        yield f"blocks {_some(strange)} carry a hash and do not exist"
    if lost := sorted(set(pool.evictable) - pool.hashes.keys()):
        yield f"blocks {_some(lost)} are cached and carry no hash"
    if stale := sorted(set(pool.free) & pool.hashes.keys()):
        yield f"blocks {_some(stale)} are free and carry a hash"


def _sequences(pool: PoolTables, sequences: Held) -> Iterator[str]:
    """Who holds blocks is a sequence that uses just these."""
    for owner, blocks in pool.held.items():
        if owner not in sequences:
            yield f"{owner} holds {len(blocks)} blocks and is not alive"
    for owner, blocks in sequences.items():
        held = pool.held.get(owner, ())
        if list(blocks) != list(held):
            yield f"{owner} uses {len(blocks)} blocks and holds {len(held)}: they differ"


def _some(blocks: Sequence[int]) -> str:
    shown = ", ".join(map(str, blocks[:8]))
    return shown if len(blocks) <= 8 else f"{shown} and {len(blocks) - 8} more"
