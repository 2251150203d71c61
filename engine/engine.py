"""The engine: takes blocks for requests, and steps: schedule, run, commit.

The control thread and the engine thread share it. One short lock guards schedule, commit and every control call; the model
runs outside of it, so control never waits for a step.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from twostep.core.block_hash import prefix_root
from twostep.core.clock import Clock
from twostep.core.errors import Conflict, InvalidRequest, PromptTooLong, RequestFault, ServingError
from twostep.core.ids import Attempt, BlockId, RequestId
from twostep.core.request import FinishReason, Request, TokenEvent
from twostep.engine.batch import Batch, Chunk
from twostep.engine.block_pool import BlockPool
from twostep.engine.config import EngineConfig
from twostep.engine.ledger import Census, Holder, Ledger
from twostep.engine.runner import Drawn, Runner
from twostep.engine.scheduler import Candidate, Limits, plan_step
from twostep.engine.sequence import Phase, PrefixChain, Sequence


class Busy(Exception):
    """There is no room for the request now; there will be when others have been released."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A request's blocks, in the order of its tokens. The first `cached_tokens` tokens are in them already."""

    request: Request
    table: tuple[BlockId, ...]
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did. `computed_prompt_tokens` counts forced tokens too; a prefix hit or handoff computes none."""

    batch: Batch
    events: tuple[TokenEvent, ...]
    faults: tuple[tuple[RequestId, ServingError], ...]
    preempted: tuple[RequestId, ...]
    computed_prompt_tokens: int
    num_decode_tokens: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """`num_waiting` are reserved or preempted; `queued_tokens` are known but not computed, decodes left out."""

    num_steps: int
    num_running: int
    num_waiting: int
    queued_tokens: int


class Engine:
    """One model and its KV cache. Control calls may come from any thread, `step` from one.

    The engine never releases by itself: a sequence that has drawn its last token rests with its blocks until its owner
    releases it. `work` is set whenever there may be something to step. `on_layers(batch, layers)` is called on the engine's
    thread, inside a step, when the KV of `layers` has been written for the whole batch.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        *,
        clock: Clock,
        on_layers: Callable[[Batch, range], None] | None = None,
    ) -> None:
        self.runner = runner
        self.work = threading.Event()
        self._clock = clock
        self._on_layers = on_layers or _ignore_layers
        self._max_batch = config.max_batch
        self._limits = Limits(runner.kv.layout.block_tokens, config.token_budget, config.min_prefill_tokens)
        self._lock = threading.Lock()
        self._pool = BlockPool(runner.kv.num_blocks)
        self._sequences: dict[RequestId, Sequence] = {}
        self._in_step: frozenset[RequestId] = frozenset()
        self._num_arrived = 0
        self._num_steps = 0

    # Control: any thread.

    @property
    def max_tokens(self) -> int:
        """The longest sequence, prompt and answer together, that this engine can hold."""
        return min(self.runner.geometry.max_model_tokens, self._pool.num_blocks * self._limits.block_tokens)

    def max_prompt_tokens(self, growth_tokens: int = 1) -> int:
        """Return the longest prompt that can ever be reserved with room for `growth_tokens` more."""
        room = self._pool.num_blocks * self._limits.block_tokens - growth_tokens
        return min(self.runner.geometry.max_model_tokens - 1, room)

    def reserve(self, request: Request, *, growth_tokens: int) -> Reservation:
        """Take blocks for all of `request.tokens` and `growth_tokens` more, those of a known prefix included.

        A prefix hit never covers the last token, whose computation yields the next. Raises InvalidRequest or PromptTooLong
        when the request can never be served, Conflict when its id is known, Busy when there is no room now.
        """
        self._require_valid(request, growth_tokens)
        tokens = list(request.tokens)
        chain = self._chain_of(request)
        prefix = chain.blocks(tokens)[: self._max_hits(len(tokens))]
        num_blocks = self.runner.kv.layout.num_blocks(len(tokens) + growth_tokens)
        with self._lock:
            self._require_room(request.id)
            holding = self._pool.reserve(request.id, prefix, num_blocks, spare=self._num_in(Phase.RUNNING))
            if holding is None:
                raise Busy(f"{num_blocks} blocks wanted, {self._pool.num_available} are available")
            cached_tokens = holding.num_cached * self._limits.block_tokens
            self._num_arrived += 1
            self._sequences[request.id] = Sequence(
                request=request,
                chain=chain,
                arrival=self._num_arrived,
                since=self._clock(),
                blocks=list(holding.blocks),
                num_computed=cached_tokens,
                num_published=holding.num_cached,
            )
        return Reservation(request, holding.blocks, cached_tokens)

    def start(self, request_id: RequestId, *, attempt: Attempt, max_draws: int | None = None) -> None:
        """Compute a reserved request here, from its cached prefix on, and draw at most `max_draws` tokens.

        A prefill leg draws one. Events carry `attempt`. Raises LookupError for an unknown request.
        """
        with self._lock:
            sequence = self._sequences[request_id]
            sequence.move_to(Phase.RUNNING)
            sequence.attempt, sequence.draws_left = attempt, max_draws
        self.work.set()

    def attach(self, request_id: RequestId, first_token: int, *, attempt: Attempt) -> FinishReason | None:
        """Decode a reserved request from `first_token` on: the KV of all `request.tokens` is in its blocks.

        Publishes the full blocks of the prompt. Returns why the answer ends with `first_token`, or None when it goes on; no
        event is emitted for it. Raises LookupError for an unknown request.
        """
        with self._lock:
            sequence = self._sequences[request_id]
            sequence.attempt = attempt
            sequence.num_computed = sequence.num_tokens
            self._publish(sequence)
            finish = self._append(sequence, first_token)
            sequence.move_to(Phase.RESTING if finish else Phase.RUNNING)
        self.work.set()
        return finish

    def release(self, request_id: RequestId) -> bool:
        """End a request in whatever phase; idempotent. Returns whether it was known.

        Its blocks are free at once, or when the running step commits if that may touch them.
        """
        with self._lock:
            sequence = self._sequences.get(request_id)
            if sequence is None or sequence.phase is Phase.RELEASED:
                return False
            holds_blocks = sequence.phase is not Phase.PREEMPTED
            sequence.move_to(Phase.RELEASED)
            if request_id not in self._in_step:
                self._forget(sequence, holds_blocks=holds_blocks)
        self.work.set()
        return True

    def distrust(self, blocks: tuple[BlockId, ...]) -> None:
        """Take blocks, and so all that follows them in a prefix, out of the prefix cache."""
        with self._lock:
            self._pool.forget(blocks)

    def load(self) -> Load:
        with self._lock:
            waiting = self._num_in(Phase.RESERVED) + self._num_in(Phase.PREEMPTED)
            pending = [s.num_pending for s in self._sequences.values() if s.phase in (Phase.RUNNING, Phase.PREEMPTED)]
            return Load(self._num_steps, self._num_in(Phase.RUNNING), waiting, sum(n for n in pending if n > 1))

    def census(self) -> Census:
        """Count all blocks anew from the block table."""
        with self._lock:
            table, alive = self._pool.table(), set(self._sequences)
        return table.census(alive)

    def ledger(self) -> Ledger:
        """List who holds which blocks, anew from the block table."""
        now = self._clock()
        with self._lock:
            table = self._pool.table()
            holders = {s.request.id: Holder(s.phase, now - s.since) for s in self._sequences.values()}
        return table.ledger(holders)

    # Stepping: the engine's thread.

    def step(self) -> StepResult | None:
        """Schedule, run, commit. Returns None when there is nothing to compute. Raises EngineFault."""
        with self._lock:
            batch, preempted = self._schedule()
        if batch is None:
            return None
        started = self._clock()
        drawn = self.runner.run(batch, lambda layers: self._on_layers(batch, layers))
        duration_s = self._clock() - started
        with self._lock:
            return self._commit(batch, drawn, preempted, duration_s)

    def _schedule(self) -> tuple[Batch | None, tuple[RequestId, ...]]:
        self._resume_preempted()
        preempted: list[RequestId] = []
        while (plan := plan_step(self._candidates(), self._limits, num_available=self._pool.num_available)).preempt:
            preempted.append(plan.preempt)
            self._preempt(self._sequences[plan.preempt])
        if not plan.runs:
            self.work.clear()
            return None, tuple(preempted)
        for run in plan.runs:
            self._sequences[run.request].blocks += self._pool.grow(run.request, run.num_new_blocks)
        chunks = tuple(self._sequences[run.request].chunk(run.num_tokens) for run in plan.runs)
        self._in_step = frozenset(run.request for run in plan.runs)
        return Batch(chunks), tuple(preempted)

    def _commit(self, batch: Batch, drawn: list[Drawn], preempted: tuple[RequestId, ...], duration_s: float) -> StepResult:
        events: list[TokenEvent] = []
        faults: list[tuple[RequestId, ServingError]] = []
        computed_prompt_tokens = 0
        for chunk, result in zip(batch.chunks, drawn, strict=True):
            sequence = self._sequences[chunk.request]
            computed_prompt_tokens += max(0, min(chunk.end, len(sequence.request.tokens)) - chunk.start)
            if sequence.phase is Phase.RELEASED:
                self._forget(sequence, holds_blocks=True)
            elif isinstance(result, RequestFault):
                sequence.move_to(Phase.RESTING)
                faults.append((chunk.request, result))
            else:
                events += self._advance(sequence, chunk, result)
        self._in_step = frozenset()
        self._num_steps += 1
        return StepResult(
            batch=batch,
            events=tuple(events),
            faults=tuple(faults),
            preempted=preempted,
            computed_prompt_tokens=computed_prompt_tokens,
            num_decode_tokens=batch.num_tokens - computed_prompt_tokens,
            duration_s=duration_s,
        )

    def _advance(self, sequence: Sequence, chunk: Chunk, token: int | None) -> list[TokenEvent]:
        sequence.num_computed = chunk.end
        self._publish(sequence)
        if token is None:
            return []
        index = sequence.next_index
        finish = self._append(sequence, token)
        if sequence.draws_left is not None:
            sequence.draws_left -= 1
        if finish or sequence.draws_left == 0:
            sequence.move_to(Phase.RESTING)
        return [TokenEvent(chunk.request, sequence.attempt, index, token, finish)]

    def _append(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Append a drawn token and return why the answer ends with it, if it does; a full KV cache ends it too."""
        finish = sequence.request.stop.finish_reason(token, sequence.next_index)
        sequence.tokens.append(token)
        return finish or (FinishReason.LENGTH if sequence.num_tokens >= self.max_tokens else None)

    def _publish(self, sequence: Sequence) -> None:
        num_full = sequence.num_computed // self._limits.block_tokens
        if num_full > sequence.num_published:
            hashes = sequence.chain.blocks(sequence.tokens)
            for block in range(sequence.num_published, num_full):
                self._pool.publish(sequence.blocks[block], hashes[block])
            sequence.num_published = num_full

    def _resume_preempted(self) -> None:
        """Give blocks back to preempted sequences, oldest first, as far as they go."""
        for sequence in sorted(self._in_phase(Phase.PREEMPTED), key=lambda sequence: sequence.arrival):
            num_tokens = min(sequence.num_tokens + self._limits.block_tokens, self.max_tokens)
            prefix = sequence.chain.blocks(sequence.tokens)[: self._max_hits(sequence.num_tokens)]
            num_blocks = self.runner.kv.layout.num_blocks(num_tokens)
            holding = self._pool.reserve(sequence.request.id, prefix, num_blocks, spare=self._num_in(Phase.RUNNING))
            if holding is None:
                return
            sequence.blocks = list(holding.blocks)
            sequence.num_published = holding.num_cached
            sequence.num_computed = holding.num_cached * self._limits.block_tokens
            sequence.move_to(Phase.RUNNING)

    def _preempt(self, sequence: Sequence) -> None:
        self._pool.release(sequence.request.id)
        sequence.blocks = []
        sequence.num_computed = sequence.num_published = 0
        sequence.move_to(Phase.PREEMPTED)

    def _forget(self, sequence: Sequence, *, holds_blocks: bool) -> None:
        del self._sequences[sequence.request.id]
        if holds_blocks:
            self._pool.release(sequence.request.id)

    def _candidates(self) -> list[Candidate]:
        block_tokens = self._limits.block_tokens
        return [
            Candidate(s.request.id, s.arrival, s.num_computed, s.num_tokens, len(s.blocks) * block_tokens)
            for s in self._in_phase(Phase.RUNNING)
        ]

    def _in_phase(self, phase: Phase) -> list[Sequence]:
        return [sequence for sequence in self._sequences.values() if sequence.phase is phase]

    def _num_in(self, phase: Phase) -> int:
        return len(self._in_phase(phase))

    def _max_hits(self, num_tokens: int) -> int:
        return (num_tokens - 1) // self._limits.block_tokens

    def _chain_of(self, request: Request) -> PrefixChain:
        known = self.runner.fingerprint
        root = prefix_root(known.model, known.weights, known.adapter, request.cache_salt)
        return PrefixChain(root, self._limits.block_tokens)

    def _require_valid(self, request: Request, growth_tokens: int) -> None:
        tokens, vocab_size = request.tokens, self.runner.fingerprint.vocab_size
        if not request.prompt:
            raise InvalidRequest("the prompt is empty", param="prompt")
        if min(tokens) < 0 or max(tokens) >= vocab_size:
            raise InvalidRequest(f"token ids must lie in [0, {vocab_size})", param="prompt")
        limit = self.max_prompt_tokens(growth_tokens)
        if len(tokens) > limit:
            raise PromptTooLong(f"prompt has {len(tokens)} tokens, this node takes {limit}", param="prompt")

    def _require_room(self, request_id: RequestId) -> None:
        known = self._sequences.get(request_id)
        if known and known.phase is not Phase.RELEASED:
            raise Conflict(f"request {request_id} is known here already, it is {known.phase}")
        num_placed = sum(s.phase in (Phase.RESERVED, Phase.RUNNING, Phase.PREEMPTED) for s in self._sequences.values())
        if known or num_placed >= self._max_batch or self._num_in(Phase.PREEMPTED):
            raise Busy(f"{num_placed} of {self._max_batch} places are taken")


def _ignore_layers(batch: Batch, layers: range) -> None:
    """Nobody waits for this engine's layers."""
    del batch, layers
