"""Which requests live in this engine, and the moves between their phases that take, publish or give back blocks.

Not safe for threads by itself: the engine's lock guards it.
"""

import enum
from dataclasses import dataclass

from twostep.core.errors import Conflict
from twostep.core.ids import BlockHash, RequestId
from twostep.core.request import FinishReason
from twostep.core.turnover import HoldMeter, Supply
from twostep.engine.block_pool import BlockPool
from twostep.engine.sequence import Phase, Prepared, Sequence

PLACED = frozenset({Phase.RESERVED, Phase.RUNNING, Phase.PREEMPTED})
"""The phases in which a request has a place in the batch."""


class Lacking(enum.StrEnum):
    """What a request that has to wait waits for."""

    BLOCKS = "blocks"
    PLACE = "place"
    RELEASE = "release"
    """The end of an earlier request of the same id."""


class Busy(Exception):
    """There is no room for the request now; there will be when others have been released."""

    def __init__(self, lacking: str, message: str) -> None:
        super().__init__(message)
        self.lacking = lacking


@dataclass(frozen=True, slots=True)
class Capacity:
    """`max_tokens` is the longest sequence, prompt and answer together; `max_batch` counts places."""

    block_tokens: int
    max_tokens: int
    max_batch: int


@dataclass(frozen=True, slots=True)
class Supplies:
    """What requests wait for before they can be admitted."""

    blocks: Supply
    places: Supply


class SequenceTable:
    """The living sequences by id, and the pool their blocks come from."""

    def __init__(self, pool: BlockPool, capacity: Capacity) -> None:
        self._pool = pool
        self._capacity = capacity
        self._sequences: dict[RequestId, Sequence] = {}
        self.num_hit_tokens = 0
        """Tokens found in the prefix cache since the start, those of resumed requests included."""
        self._num_arrived = 0
        self._block_holds = HoldMeter()
        self._place_holds = HoldMeter()

    def __getitem__(self, request_id: RequestId) -> Sequence:
        """Raises LookupError for an unknown request."""
        return self._sequences[request_id]

    def get(self, request_id: RequestId) -> Sequence | None:
        return self._sequences.get(request_id)

    def select(self, *phases: Phase) -> list[Sequence]:
        """Return the sequences in any of `phases`, or all, in order of arrival."""
        return [one for one in self._sequences.values() if not phases or one.phase in phases]

    def preempted(self) -> list[Sequence]:
        """Return the preempted sequences that wait for blocks."""
        return [one for one in self.select(Phase.PREEMPTED) if not one.is_paused]

    def running(self) -> list[Sequence]:
        """Return the sequences that are to be computed, on and on."""
        return [one for one in self.select(Phase.RUNNING) if not one.is_paused]

    def launchable(self) -> list[Sequence]:
        """Return those of them of which something is left to be launched."""
        return [one for one in self.running() if not one.num_drawing or not self._draws_its_last(one)]

    @property
    def is_any_flying(self) -> bool:
        return any(one.num_flights for one in self._sequences.values())

    def num_slots(self, sequence: Sequence) -> int:
        """Return how many tokens its blocks can hold."""
        return len(sequence.blocks) * self._capacity.block_tokens

    def num_lost_blocks(self, sequence: Sequence) -> int:
        """Return how many blocks of it would have to be computed again if they were taken: nobody could find them."""
        return -(-sequence.num_computed // self._capacity.block_tokens) - sequence.num_published

    @property
    def num_coming_blocks(self) -> int:
        """Blocks that are available as soon as nothing writes into them any more."""
        ending = {one.request.id for one in self.select(Phase.ENDING)}
        return self._pool.num_held_by(ending) if ending else 0

    def supplies(self) -> Supplies:
        """Return what is free and held now, and how long it was held lately."""
        num_placed, num_free = len(self.select(*PLACED)), self._pool.num_available
        return Supplies(
            blocks=Supply(num_free, self._pool.num_blocks - num_free, self._block_holds.mean_s),
            places=Supply(self._capacity.max_batch - num_placed, num_placed, self._place_holds.mean_s),
        )

    def num_cached_tokens(self, prepared: Prepared, align_tokens: int) -> int:
        """Return how much of a request's prefix would be found now."""
        size, num_tokens = self._capacity.block_tokens, len(prepared.request.tokens)
        usable = self._usable(prepared.chain.blocks(prepared.request.tokens), num_tokens)
        return self._pool.num_hits(usable, hit_step=align_tokens // size) * size

    def admit(self, prepared: Prepared, *, align_tokens: int, now: float) -> Sequence:
        """Take a place, and blocks for all tokens of the request and its growth, up to the longest sequence.

        Raises Conflict or Busy.
        """
        request = prepared.request
        self._require_place(request.id)
        self._num_arrived += 1
        sequence = Sequence(request, prepared.chain, self._num_arrived, now)
        if not self._take_blocks(sequence, prepared.wanted_tokens(self._capacity.max_tokens), align_tokens):
            raise Busy(Lacking.BLOCKS, f"{self._pool.num_available} of {self._pool.num_blocks} blocks are available")
        self._sequences[request.id] = sequence
        return sequence

    def append(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Append a drawn token; a sequence that has drawn its last one here comes to rest. Returns why, if it is at its end.

        An answer that would go on here ends at the longest sequence that this engine can hold.
        """
        finish = sequence.append(token)
        if not finish and sequence.draws_left != 0 and sequence.num_tokens >= self._capacity.max_tokens:
            finish = FinishReason.LENGTH
        if finish or sequence.draws_left == 0:
            sequence.move_to(Phase.RESTING)
        return finish

    def publish(self, sequence: Sequence) -> None:
        """Make the sequence's full computed blocks findable."""
        num_full = sequence.num_computed // self._capacity.block_tokens
        if num_full > sequence.num_published:
            hashes = sequence.chain.blocks(sequence.tokens)
            for i in range(sequence.num_published, num_full):
                self._pool.publish(sequence.blocks[i], hashes[i], hashes[i - 1] if i else None)
            sequence.num_published = num_full

    def grow(self, sequence: Sequence, num_blocks: int) -> None:
        sequence.blocks += self._pool.grow(sequence.request.id, num_blocks)

    def preempt(self, sequence: Sequence) -> None:
        """Take all blocks from a running sequence; those it has published can be hit when it is resumed."""
        sequence.move_to(Phase.PREEMPTED)
        self._pool.release(sequence.request.id)
        sequence.blocks = []
        sequence.num_computed = sequence.num_published = 0
        sequence.num_preemptions += 1

    def restore(self, sequence: Sequence, *, spare_blocks: int) -> bool:
        """Give a preempted sequence blocks to go on with; False, and nothing taken, unless `spare_blocks` more stay free."""
        size = self._capacity.block_tokens
        num_tokens = min(sequence.num_tokens + size, self._capacity.max_tokens)
        if not self._take_blocks(sequence, num_tokens, align_tokens=size, spare_blocks=spare_blocks):
            return False
        sequence.move_to(Phase.RUNNING)
        sequence.num_when_admitted = sequence.num_tokens
        return True

    def forget(self, sequence: Sequence, *, now: float) -> None:
        """Drop a released sequence and its references."""
        del self._sequences[sequence.request.id]
        self._block_holds.record(len(sequence.blocks), now - sequence.since)
        self._place_holds.record(1, now - sequence.since)
        if sequence.blocks:
            self._pool.release(sequence.request.id)

    def _take_blocks(self, sequence: Sequence, num_tokens: int, align_tokens: int, spare_blocks: int = 0) -> bool:
        """Reference the known prefix and fresh blocks for `num_tokens`.

        A block stays for each running sequence that will need another, as far as none are about to come back.
        """
        size = self._capacity.block_tokens
        holding = self._pool.reserve(
            sequence.request.id,
            self._usable(sequence.chain.blocks(sequence.tokens), sequence.num_tokens),
            -(-num_tokens // size),
            hit_step=align_tokens // size,
            spare=spare_blocks + max(0, self._num_growing - self.num_coming_blocks),
        )
        if holding is None:
            return False
        sequence.blocks = list(holding.blocks)
        sequence.num_published = holding.num_cached
        sequence.num_computed = holding.num_cached * size
        self.num_hit_tokens += sequence.num_computed
        return True

    def _draws_its_last(self, sequence: Sequence) -> bool:
        """Return whether its answer ends here with what launched steps draw, whatever that is."""
        drawing, left = sequence.num_drawing, sequence.draws_left
        return (
            (left is not None and drawing >= left)
            or sequence.next_index + drawing >= sequence.request.stop.max_tokens
            or sequence.num_expected >= self._capacity.max_tokens
        )

    @property
    def _num_growing(self) -> int:
        """Running sequences whose blocks do not hold all that they may still draw."""
        return sum(self.num_slots(one) < self._most_tokens(one) for one in self.select(Phase.RUNNING))

    def _most_tokens(self, sequence: Sequence) -> int:
        """Return how many tokens the cache may have to hold for it; nobody computes the last that it draws."""
        left, num_outputs = sequence.draws_left, sequence.request.stop.max_tokens
        if left is not None:
            num_outputs = sequence.next_index + left
        return min(len(sequence.request.prompt) + num_outputs - 1, self._capacity.max_tokens)

    def _usable(self, hashes: list[BlockHash], num_tokens: int) -> list[BlockHash]:
        """The last token is always computed: its logits give the next."""
        return hashes[: (num_tokens - 1) // self._capacity.block_tokens]

    def _require_place(self, request_id: RequestId) -> None:
        known = self.get(request_id)
        if known and known.phase not in (Phase.ENDING, Phase.RELEASED):
            raise Conflict(f"request {request_id} is known here already: it is {known.phase}")
        if known:
            raise Busy(Lacking.RELEASE, f"request {request_id} is being released")
        if self.preempted():
            raise Busy(Lacking.BLOCKS, "preempted requests wait for blocks")
        if len(self.select(*PLACED)) >= self._capacity.max_batch:
            raise Busy(Lacking.PLACE, f"all {self._capacity.max_batch} places are taken")
