"""Which node holds which prefixes, as far as this router knows: from what nodes tell, and from what it has sent them. Pure.

A block's holders are the bits of one number, so that the longest prefix of all nodes is found in one walk along the prompt.
Every method takes `now`, in seconds on any clock.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from twostep.core.block_news import BlockNews
from twostep.core.ids import BlockHash, NodeRef
from twostep.router.placement.prompt_hashes import Naming, PromptHashes

HOLDING_BYTES = 120
"""What it takes to know that one node holds one block: an entry of the node's dictionary, and its share of the name."""
BLOCK_BYTES = 190
"""What a block takes that anybody holds: its name, an entry, and a number as wide as a few nodes."""
NOTE_BYTES = 200
MARK_BYTES = 64
"""What it takes to remember until when a prompt's marks are taken to be at a node: a note, and each mark's name in it."""
NOTES_SHARE = 8
"""The notes take this part of the memory at most; beyond it those that would expire first do so at once."""
FORGOTTEN_SHARE = 8
"""When the index is full, the node of which most is known is forgotten by this part of it, what was learnt first."""
NUM_DEEPEST = 32
STRIDE = 16


class Level(NamedTuple):
    """The nodes, by bit, that hold at least `tokens` tokens of a prompt."""

    tokens: int
    holders: int


class Hits:
    """How much of one prompt each node holds."""

    def __init__(self, levels: Sequence[Level], slots: dict[NodeRef, int], nodes: Sequence[NodeRef | None]) -> None:
        self._levels = levels
        self._slots = slots
        self._found: dict[int, int] = {}
        """The tokens of some that hold most, by slot, the most first."""
        self._are_all = True
        seen = 0
        for level in levels:
            if fresh := level.holders & ~seen:
                seen |= fresh
                first = _first_slots(fresh)
                self._found |= dict.fromkeys(first, level.tokens)
                self._are_all = self._are_all and len(first) < NUM_DEEPEST
        self.deepest: list[NodeRef] = [node for slot in self._found if (node := nodes[slot])]
        """The nodes that hold most of the prompt, the most first; not all that hold anything where those are many."""

    def tokens(self, node: NodeRef) -> int:
        """Return how many tokens of the prompt `node` holds, whole blocks only."""
        slot = self._slots.get(node)
        if slot is None:
            return 0
        found = self._found.get(slot)
        if found is not None or self._are_all:
            return found or 0
        return next((level.tokens for level in self._levels if level.holders >> slot & 1), 0)


@lru_cache(maxsize=4096)
def _first_slots(holders: int) -> tuple[int, ...]:
    """Return the numbers of the lowest bits, at most `NUM_DEEPEST`; the holders of a prefix are asked for again and again."""
    slots: list[int] = []
    number = holders.to_bytes(holders.bit_length() // 8 + 1, "little")
    place = 0
    while len(slots) < NUM_DEEPEST and (left := number.lstrip(b"\0")):
        place += len(number) - len(left)
        slots += [8 * place + bit for bit in range(8) if left[0] >> bit & 1]
        number, place = left[1:], place + 1
    return tuple(slots[:NUM_DEEPEST])


NO_HITS = Hits((), {}, ())


@dataclass(slots=True)
class _Known:
    """One node: its bit, the next event to hear (-1: all), what it told, and until when what was sent is taken to be there."""

    slot: int
    bit: int
    naming: Naming
    next: int = -1
    told: dict[BlockHash, None] = field(default_factory=dict)
    sent: dict[BlockHash, float] = field(default_factory=dict)


Holders = dict[BlockHash, int]


class PrefixIndex:
    """Bounded by `max_bytes`. A node is known from `meet` to `drop`; each incarnation is a node of its own."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._known: dict[NodeRef, _Known] = {}
        self._slots: dict[NodeRef, int] = {}
        self._nodes: list[NodeRef | None] = []
        self._free_slots: list[int] = []
        self._told: dict[Naming, Holders] = {}
        self._sent: dict[Naming, Holders] = {}
        self._expiring: list[tuple[float, int, NodeRef, list[BlockHash]]] = []
        self._num_noted = 0
        self._num_expiring_marks = 0
        self._num_holdings = 0
        self.num_forgotten = 0
        """Holdings that were given up because the index was full."""
        self.num_gaps = 0
        """How often events were missing, so that a node had to tell everything again."""

    def __contains__(self, node: object) -> bool:
        return node in self._known

    @property
    def num_bytes(self) -> int:
        """About how much memory is taken."""
        num_blocks = sum(map(len, self._told.values())) + sum(map(len, self._sent.values()))
        return self._num_holdings * HOLDING_BYTES + num_blocks * (BLOCK_BYTES + len(self._nodes) // 8) + self._notes_bytes

    @property
    def _notes_bytes(self) -> int:
        return len(self._expiring) * NOTE_BYTES + self._num_expiring_marks * MARK_BYTES

    def meet(self, node: NodeRef, naming: Naming) -> None:
        """Begin to keep what is known of a node. Does nothing when it is known already."""
        if node in self._known:
            return
        slot = heapq.heappop(self._free_slots) if self._free_slots else len(self._nodes)
        if slot == len(self._nodes):
            self._nodes.append(None)
        self._nodes[slot] = node
        self._slots[node] = slot
        self._known[node] = _Known(slot, 1 << slot, naming)
        self._told.setdefault(naming, {})
        self._sent.setdefault(naming, {})

    def drop(self, node: NodeRef) -> None:
        """Forget everything about a node, at once: this life of it is over."""
        known = self._known.get(node)
        if known is None:
            return
        self._forget_told(known, tuple(known.told))
        self._forget_sent(known, tuple(known.sent))
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
        return frozenset(known.told) if known else frozenset()

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
            stored = set(news.stored)
            self._forget_told(known, tuple(block for block in known.told if block not in stored))
        self._forget_told(known, news.evicted)
        holders = self._told[known.naming]
        for block in news.stored:
            if block not in known.told:
                known.told[block] = None
                holders[block] = holders.get(block, 0) | known.bit
                self._num_holdings += 1
        known.next = news.next
        self._make_room()
        return True

    def note_sent(self, node: NodeRef, prompt: PromptHashes, *, until: float) -> None:
        """Take a prompt's blocks to be at a node until then: it has been sent there. Kept are its marks."""
        known = self._known.get(node)
        marks = prompt.marks(known.naming) if known else []
        if known is None or not marks:
            return
        sent, holders = known.sent, self._sent[known.naming]
        for block in marks:
            before = sent.get(block)
            if before is None:
                holders[block] = holders.get(block, 0) | known.bit
                self._num_holdings += 1
            if before is None or before < until:
                sent[block] = until
        self._num_noted += 1
        heapq.heappush(self._expiring, (until, self._num_noted, node, marks))
        self._num_expiring_marks += len(marks)
        while self._notes_bytes > self._max_bytes // NOTES_SHARE:
            self.num_forgotten += self._let_expire()
        self._make_room()

    def match(self, prompt: PromptHashes, *, now: float) -> Hits:
        """Return how much of a prompt each node holds."""
        self._expire(now)
        levels: list[Level] = []
        for naming, told in self._told.items():
            blocks, sent = prompt.blocks(naming), self._sent[naming]
            if told:
                levels += _told_levels(blocks, naming.block_tokens, told)
            if sent:
                levels += _sent_levels(blocks, naming.block_tokens, sent)
        if len(levels) > 1:
            levels.sort(key=_depth, reverse=True)
        return Hits(levels, self._slots, self._nodes)

    def _forget_told(self, known: _Known, blocks: Sequence[BlockHash]) -> None:
        holders = self._told[known.naming]
        for block in blocks:
            if block in known.told:
                del known.told[block]
                _let_go(holders, block, known.bit)
                self._num_holdings -= 1

    def _forget_sent(self, known: _Known, blocks: Sequence[BlockHash]) -> None:
        holders = self._sent[known.naming]
        for block in blocks:
            if block in known.sent:
                del known.sent[block]
                _let_go(holders, block, known.bit)
                self._num_holdings -= 1

    def _expire(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            self._let_expire()

    def _let_expire(self) -> int:
        """Take back the note that expires first, and forget what no other one speaks of. Returns how many blocks that are."""
        until, _, node, marks = heapq.heappop(self._expiring)
        self._num_expiring_marks -= len(marks)
        known = self._known.get(node)
        if known is None:
            return 0
        expired = [block for block in marks if known.sent.get(block, math.inf) <= until]
        self._forget_sent(known, expired)
        return len(expired)

    def _make_room(self) -> None:
        while self.num_bytes > self._max_bytes and self._num_holdings:
            most = max(self._known.values(), key=lambda known: len(known.told) + len(known.sent))
            for blocks, forget in ((most.told, self._forget_told), (most.sent, self._forget_sent)):
                oldest = list(blocks)[: -(-len(blocks) // FORGOTTEN_SHARE)]
                forget(most, oldest)
                self.num_forgotten += len(oldest)


def _told_levels(blocks: Sequence[BlockHash], block_tokens: int, holders: Holders) -> Iterator[Level]:
    """Yield who holds how much of a prompt, one level wherever somebody's part ends.

    Nodes evict a chain from its end, so whoever holds a block holds those before it: most of the way is made in strides.
    """
    alive, depth = (holders.get(blocks[0], 0) if blocks else 0), 1
    while alive:
        if depth + STRIDE <= len(blocks) and _covers(holders.get(blocks[depth + STRIDE - 1], 0), alive):
            depth += STRIDE
            continue
        for block in blocks[depth : depth + STRIDE]:
            held = holders.get(block, 0)
            if not _covers(held, alive):
                yield Level(depth * block_tokens, alive)
                alive &= held
            if not alive:
                return
            depth += 1
        if depth >= len(blocks):
            break
    if alive:
        yield Level(depth * block_tokens, alive)


def _covers(held: int, alive: int) -> bool:
    # Neighbours mostly have the same holders, and to compare such long numbers is cheaper than to combine them.
    return held == alive or held & alive == alive


def _sent_levels(blocks: Sequence[BlockHash], block_tokens: int, holders: Holders) -> Iterator[Level]:
    """Yield to whom how much of a prompt was sent: a block's name stands for all before it."""
    depth = 0
    for block in filter(holders.__contains__, blocks):
        depth = blocks.index(block, depth) + 1
        yield Level(depth * block_tokens, holders[block])


def _let_go(holders: Holders, block: BlockHash, bit: int) -> None:
    left = holders[block] & ~bit
    if left:
        holders[block] = left
    else:
        del holders[block]


def _depth(level: Level) -> int:
    return level.tokens
