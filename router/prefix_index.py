"""Which node holds which prefixes, as far as this router knows: from what nodes tell, and from what it has sent them. Pure.

A block's holders are the bits of one number, so that the longest prefix of all nodes is found in one walk along the prompt.
Every method takes `now`, in seconds on any clock.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from twostep.core.block_news import BlockNews
from twostep.core.ids import BlockHash, NodeRef
from twostep.router.prompt_hashes import Naming, PromptHashes

HOLDING_BYTES = 120
"""What it takes to know that one node holds one block: an entry of the node's dictionary, and its share of the name."""
BLOCK_BYTES = 190
"""What a block takes that anybody holds: its name, an entry, and a number as wide as a few nodes."""
FORGOTTEN_SHARE = 8
"""When the index is full, the node of which most is known is forgotten by this part of it, what was learnt first."""
TOLD = math.inf
"""Until when something is known that a node itself has told."""


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes, by bit, that hold at least `tokens` tokens of a prompt."""

    tokens: int
    holders: int


class Hits:
    """How much of one prompt each node holds."""

    def __init__(self, levels: Sequence[Level], slots: dict[NodeRef, int], nodes: Sequence[NodeRef | None]) -> None:
        self._levels = levels
        self._slots = slots
        self._nodes = nodes

    def tokens(self, node: NodeRef) -> int:
        """Return how many tokens of the prompt `node` holds, whole blocks only."""
        slot = self._slots.get(node)
        if slot is None:
            return 0
        return next((level.tokens for level in self._levels if level.holders >> slot & 1), 0)

    def deepest(self, limit: int) -> Iterator[tuple[NodeRef, int]]:
        """Yield at most `limit` nodes and how many tokens they hold, the most first."""
        seen = 0
        for level in self._levels:
            for slot in _bits(level.holders & ~seen):
                if limit == 0:
                    return
                limit -= 1
                seen |= 1 << slot
                if node := self._nodes[slot]:
                    yield node, level.tokens


NO_HITS = Hits((), {}, ())


@dataclass(slots=True)
class _Known:
    """One node: its bit, the next event to hear (-1: all), and until when each of its blocks is taken to be there."""

    slot: int
    naming: Naming
    next: int = -1
    until: dict[BlockHash, float] = field(default_factory=dict)


class PrefixIndex:
    """Bounded by `max_bytes`. A node is known from `meet` to `drop`; each incarnation is a node of its own."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._known: dict[NodeRef, _Known] = {}
        self._slots: dict[NodeRef, int] = {}
        self._nodes: list[NodeRef | None] = []
        self._free_slots: list[int] = []
        self._holders: dict[Naming, dict[BlockHash, int]] = {}
        self._expiring: list[tuple[float, int, NodeRef, tuple[BlockHash, ...]]] = []
        self._num_noted = 0
        self._num_holdings = 0
        self.num_forgotten = 0
        """Holdings that were given up because the index was full."""
        self.num_gaps = 0
        """How often events were missing, so that a node had to tell everything again."""

    @property
    def num_bytes(self) -> int:
        """About how much memory is taken."""
        num_blocks = sum(map(len, self._holders.values()))
        return self._num_holdings * HOLDING_BYTES + num_blocks * (BLOCK_BYTES + len(self._nodes) // 8)

    def meet(self, node: NodeRef, naming: Naming) -> None:
        """Begin to keep what is known of a node. Does nothing when it is known already."""
        if node in self._known:
            return
        slot = heapq.heappop(self._free_slots) if self._free_slots else len(self._nodes)
        if slot == len(self._nodes):
            self._nodes.append(None)
        self._nodes[slot] = node
        self._slots[node] = slot
        self._known[node] = _Known(slot, naming)
        self._holders.setdefault(naming, {})

    def drop(self, node: NodeRef) -> None:
        """Forget everything about a node, at once: this life of it is over."""
        known = self._known.get(node)
        if known is None:
            return
        for block in tuple(known.until):
            self._remove(known, block)
        del self._known[node], self._slots[node]
        self._nodes[known.slot] = None
        heapq.heappush(self._free_slots, known.slot)

    def next_event(self, node: NodeRef) -> int:
        """Return the number of the first event that has not been heard of this node."""
        known = self._known.get(node)
        return max(known.next, 0) if known else 0

    def told(self, node: NodeRef) -> frozenset[BlockHash]:
        """Return what the node itself has told that it holds, for people and tests."""
        known = self._known.get(node)
        return frozenset(block for block, until in known.until.items() if until == TOLD) if known else frozenset()

    def tells(self, node: NodeRef) -> bool:
        """Return whether the node has ever told what it holds."""
        known = self._known.get(node)
        return known is not None and known.next >= 0

    def hear(self, node: NodeRef, news: BlockNews) -> bool:
        """Take up what a node tells. Returns False when events are missing before these: it has to tell everything again."""
        known = self._known.get(node)
        if known is None:
            return True
        if not news.is_snapshot and news.first != max(known.next, 0):
            known.next = -1
            self.num_gaps += 1
            return False
        if news.is_snapshot:
            self._keep_only(known, set(news.stored))
        for block in news.evicted:
            self._remove(known, block)
        for block in news.stored:
            self._add(known, block, TOLD)
        known.next = news.next
        self._make_room()
        return True

    def note_sent(self, node: NodeRef, prompt: PromptHashes, *, until: float) -> None:
        """Take a prompt's blocks to be at a node until then: it has been sent there. What it tells itself goes further."""
        known = self._known.get(node)
        if known is None:
            return
        blocks = tuple(block for block in prompt.blocks(known.naming) if known.until.get(block, 0.0) < until)
        for block in blocks:
            self._add(known, block, until)
        if blocks:
            self._num_noted += 1
            heapq.heappush(self._expiring, (until, self._num_noted, node, blocks))
        self._make_room()

    def match(self, prompt: PromptHashes, *, now: float) -> Hits:
        """Return how much of a prompt each node holds."""
        self._expire(now)
        levels = [level for naming, holders in self._holders.items() if holders for level in _levels(prompt, naming, holders)]
        return Hits(sorted(levels, key=_depth, reverse=True), self._slots, self._nodes)

    def _add(self, known: _Known, block: BlockHash, until: float) -> None:
        if block not in known.until:
            self._num_holdings += 1
            holders = self._holders[known.naming]
            holders[block] = holders.get(block, 0) | 1 << known.slot
        known.until[block] = until

    def _remove(self, known: _Known, block: BlockHash) -> None:
        if known.until.pop(block, None) is None:
            return
        self._num_holdings -= 1
        holders = self._holders[known.naming]
        left = holders[block] & ~(1 << known.slot)
        if left:
            holders[block] = left
        else:
            del holders[block]

    def _keep_only(self, known: _Known, stored: set[BlockHash]) -> None:
        """What was sent but not told of yet may still be under way."""
        for block in [block for block, until in known.until.items() if until == TOLD and block not in stored]:
            self._remove(known, block)

    def _expire(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            _, _, node, blocks = heapq.heappop(self._expiring)
            known = self._known.get(node)
            for block in blocks if known else ():
                if known and known.until.get(block, TOLD) <= now:
                    self._remove(known, block)

    def _make_room(self) -> None:
        while self.num_bytes > self._max_bytes and self._num_holdings:
            most = max(self._known.values(), key=lambda known: len(known.until))
            oldest = list(most.until)[: -(-len(most.until) // FORGOTTEN_SHARE)]
            for block in oldest:
                self._remove(most, block)
            self.num_forgotten += len(oldest)


def _levels(prompt: PromptHashes, naming: Naming, holders: dict[BlockHash, int]) -> Iterator[Level]:
    """Yield who holds how much of the prompt, one level wherever somebody's part ends."""
    alive, num_blocks = -1, 0
    for block in prompt.blocks(naming):
        left = alive & holders.get(block, 0)
        if left != alive and num_blocks:
            yield Level(num_blocks * naming.block_tokens, alive)
        alive = left
        if not alive:
            return
        num_blocks += 1
    if num_blocks:
        yield Level(num_blocks * naming.block_tokens, alive)


def _depth(level: Level) -> int:
    return level.tokens


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
