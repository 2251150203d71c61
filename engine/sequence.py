"""One request inside the engine: its tokens, how many of them are in the KV cache, its blocks, its phase."""

import enum
import math
from dataclasses import dataclass, field

from twostep.core.block_hash import HASH_BLOCK_TOKENS, hash_chain
from twostep.core.ids import Attempt, BlockHash, BlockId
from twostep.core.request import FinishReason, Request, Timing
from twostep.engine.batch import UNKNOWN_TOKEN, Chunk, Draw
from twostep.engine.ranking import Claim, claim_of

NOT_STARTED = Attempt(0)


class Phase(enum.StrEnum):
    RESERVED = "reserved"
    """Holds blocks; waits to be started, or for its KV to be attached."""
    RUNNING = "running"
    """Catches up with its tokens and draws the next."""
    PREEMPTED = "preempted"
    """Holds no blocks; waits until there are enough to compute it again."""
    RESTING = "resting"
    """Has drawn its last token here, or has failed; keeps its blocks until it is released."""
    ENDING = "ending"
    """Over, but something outside the engine may still write into its blocks: it is released when that has stopped."""
    RELEASED = "released"
    """Gone, but launched steps may still touch its blocks: they are freed when the last of those commits."""


LEGAL_MOVES = {
    Phase.RESERVED: {Phase.RUNNING, Phase.ENDING, Phase.RELEASED},
    Phase.RUNNING: {Phase.PREEMPTED, Phase.RESTING, Phase.ENDING, Phase.RELEASED},
    Phase.PREEMPTED: {Phase.RUNNING, Phase.ENDING, Phase.RELEASED},
    Phase.RESTING: {Phase.ENDING, Phase.RELEASED},
    Phase.ENDING: {Phase.RELEASED},
    Phase.RELEASED: set[Phase](),
}


Tokens = list[int] | tuple[int, ...]


class PrefixChain:
    """The hashes of a growing token sequence's full blocks, each made once; those of `tokens` at once."""

    def __init__(self, root: BlockHash, block_tokens: int, tokens: Tokens = ()) -> None:
        self._root = root
        self._hashes_per_block = block_tokens // HASH_BLOCK_TOKENS
        self._hashes = hash_chain(root, tokens)

    def blocks(self, tokens: Tokens) -> list[BlockHash]:
        """Return the hash of every full block of `tokens`, which must continue those given before."""
        if len(tokens) // HASH_BLOCK_TOKENS > len(self._hashes):
            parent = self._hashes[-1] if self._hashes else self._root
            self._hashes += hash_chain(parent, tokens[len(self._hashes) * HASH_BLOCK_TOKENS :])
        return self._hashes[self._hashes_per_block - 1 :: self._hashes_per_block]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that this engine can serve, its prefix hashed. It wants room for its tokens and `growth_tokens` more."""

    request: Request
    chain: PrefixChain
    growth_tokens: int

    def wanted_tokens(self, longest: int) -> int:
        """Return how many tokens it takes room for, where no sequence has more than `longest`."""
        return min(len(self.request.tokens) + self.growth_tokens, longest)


@dataclass(slots=True, eq=False)
class Sequence:
    """What the engine knows of one request. The rule: `num_computed` catches up with `num_tokens`.

    `arrival` orders requests, `since` is when it reserved, `draws_left` how many more tokens it may draw on this
    node (None: as many as its stop rules allow), `num_published` how many of its blocks are in the prefix cache. One that
    `is_paused` keeps what it has and is not computed. `served_at` is when something of it was last computed, and
    `num_when_admitted` how many tokens it had when it last got its blocks. Steps that were launched and have not committed:
    `num_flights` of them hold a chunk of it, together `num_flying` of its tokens, and draw `num_drawing` tokens after those
    that are known.
    """

    request: Request
    chain: PrefixChain
    arrival: int
    since: float
    blocks: list[BlockId] = field(default_factory=list)
    num_computed: int = 0
    num_published: int = 0
    tokens: list[int] = field(init=False)
    phase: Phase = Phase.RESERVED
    attempt: Attempt = NOT_STARTED
    draws_left: int | None = None
    is_paused: bool = False
    born_at: float = 0.0
    deadline: float = math.inf
    served_at: float = 0.0
    num_when_admitted: int = field(init=False)
    num_preemptions: int = 0
    num_flights: int = 0
    num_flying: int = 0
    num_drawing: int = 0

    def __post_init__(self) -> None:
        self.tokens = list(self.request.tokens)
        self.num_when_admitted = len(self.tokens)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_launched(self) -> int:
        """Tokens that are in the KV cache when all launched steps have run."""
        return self.num_computed + self.num_flying

    @property
    def num_expected(self) -> int:
        """Tokens that are known when all launched steps have run."""
        return len(self.tokens) + self.num_drawing

    @property
    def num_pending(self) -> int:
        """Tokens known, or being drawn, and neither in the KV cache nor in a launched step."""
        return self.num_expected - self.num_launched

    @property
    def next_index(self) -> int:
        """The output number, from 0, of the token that is drawn next."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def claim(self) -> Claim:
        """What it can say for itself beside others; a wish for the first token holds until there is one."""
        return claim_of(self.request, self.born_at, self.deadline, arrival=self.arrival, has_drawn=self.next_index > 0)

    def begin(self, attempt: Attempt, timing: Timing, now: float) -> None:
        """Run from now on, for `attempt`. Raises ValueError when it cannot."""
        self.move_to(Phase.RUNNING)
        self.attempt = attempt
        self.born_at, self.deadline, self.served_at = now - timing.age_s, now + timing.remaining_s, now

    def num_prompt_tokens(self, chunk: Chunk) -> int:
        """Return how many of the chunk's tokens the request came with: prompt and forced output."""
        return max(0, min(chunk.end, len(self.request.tokens)) - chunk.start)

    def move_to(self, phase: Phase) -> None:
        """Raises ValueError when the table of legal moves does not hold the move."""
        if phase not in LEGAL_MOVES[self.phase]:
            raise ValueError(f"{self.request.id} cannot go from {self.phase} to {phase}")
        self.phase = phase

    def append(self, token: int) -> FinishReason | None:
        """Append the drawn token and return why the answer ends with it by the request's own rules, if it does."""
        finish = self.request.stop.finish_reason(token, self.next_index)
        self.tokens.append(token)
        if self.draws_left is not None:
            self.draws_left -= 1
        return finish

    def chunk(self, num_tokens: int) -> Chunk:
        """Return the next `num_tokens` pending tokens as a part of a batch; the one that catches up asks for a draw."""
        start, end = self.num_launched, self.num_launched + num_tokens
        tokens = self.tokens[start:end]
        return Chunk(
            request=self.request.id,
            tokens=(*tokens, *[UNKNOWN_TOKEN] * (num_tokens - len(tokens))),
            start=start,
            blocks=tuple(self.blocks),
            draw=Draw(self.request.sampling, self.next_index + self.num_drawing) if end == self.num_expected else None,
        )

    def launch(self, num_tokens: int) -> Chunk:
        """Return the chunk, which a step is launched with."""
        chunk = self.chunk(num_tokens)
        self.num_flights += 1
        self.num_flying += num_tokens
        self.num_drawing += chunk.draw is not None
        return chunk

    def land(self, chunk: Chunk) -> None:
        """The step that `chunk` was launched with has run; steps land in order."""
        self.num_flights -= 1
        self.num_flying -= len(chunk.tokens)
        self.num_drawing -= chunk.draw is not None
