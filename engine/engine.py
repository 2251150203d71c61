"""The engine: takes blocks for requests, and steps: schedule, run, commit.

The control thread and the engine thread share it. One short lock guards schedule, commit and every control call; the model
runs outside of it, so control never waits for a step. As many steps are launched before the first is collected as the runner
has depth: on a device the next step is planned while one runs.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from twostep.core.block_hash import prefix_root
from twostep.core.block_news import BlockNews
from twostep.core.clock import Clock
from twostep.core.errors import InvalidRequest, PromptTooLong, RequestFault, ServingError
from twostep.core.ids import Attempt, BlockId, RequestId
from twostep.core.request import UNTIMED, FinishReason, Request, Timing, TokenEvent
from twostep.engine.audit import audit_pool
from twostep.engine.batch import Batch, Chunk
from twostep.engine.block_pool import BlockPool
from twostep.engine.config import EngineConfig
from twostep.engine.ledger import BlockTable, Census, Holder, Ledger, Occupancy
from twostep.engine.ranking import Ranking
from twostep.engine.runner import Collect, Drawn, Runner
from twostep.engine.sequence import Phase, PrefixChain, Sequence
from twostep.engine.sequence import Prepared as Prepared
from twostep.engine.sequence_table import PLACED, Capacity, SequenceTable, Supplies
from twostep.engine.sequence_table import Busy as Busy
from twostep.engine.sequence_table import Lacking as Lacking
from twostep.engine.step_planner import StepPlanner
from twostep.engine.step_record import Launch, RunTime, RunTimer, StepRecord

OnBatchLayers = Callable[[Batch, range], None]


@dataclass(frozen=True, slots=True)
class Reservation:
    """A request's blocks, in the order of its tokens. The first `cached_tokens` tokens are in them already."""

    request: Request
    table: tuple[BlockId, ...]
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did; `preempted` lists those preempted since the last result."""

    batch: Batch
    events: tuple[TokenEvent, ...]
    faults: tuple[tuple[RequestId, ServingError], ...]
    preempted: tuple[RequestId, ...]
    record: StepRecord


@dataclass(frozen=True, slots=True)
class Load:
    """`num_waiting` are reserved, preempted or paused; `queued_tokens` are known but not computed, decodes left out."""

    num_steps: int
    num_running: int
    num_waiting: int
    queued_tokens: int


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that was launched and has not been collected."""

    batch: Batch
    launch: Launch
    collect: Collect


class Engine:
    """One model and its KV cache. Control calls may come from any thread, `step` from one.

    The engine never releases by itself: a sequence that has drawn its last token rests with its blocks until its owner
    releases it. `work` is set whenever there may be something to step. `on_layers(batch, layers)` is called on the engine's
    thread, inside a step, when the KV of `layers` has been written for the whole batch.
    """

    def __init__(self, runner: Runner, config: EngineConfig, *, clock: Clock, on_layers: OnBatchLayers | None = None) -> None:
        self.runner = runner
        self.work = threading.Event()
        self._clock = clock
        self._on_layers = on_layers or _ignore_layers
        self._block_tokens = runner.kv.layout.block_tokens
        self._lock = threading.Lock()
        self._pool = BlockPool(runner.kv.num_blocks)
        self._sequences = SequenceTable(self._pool, Capacity(self._block_tokens, self.max_tokens, config.max_batch))
        self._planner = StepPlanner(self._sequences, self._pool, config)
        self._token_budget = config.token_budget
        self._flights: deque[_Flight] = deque()
        self._preempted: list[RequestId] = []
        self._timer = RunTimer(clock)
        self._num_steps = 0
        self._num_hit_tokens = 0

    @property
    def max_tokens(self) -> int:
        """The longest sequence, prompt and answer together, that this engine can hold."""
        return min(self.runner.geometry.max_model_tokens, self._pool.num_blocks * self._block_tokens)

    def max_prompt_tokens(self, growth_tokens: int = 1) -> int:
        """Return the longest prompt that can ever be reserved with room for `growth_tokens` more."""
        room = self._pool.num_blocks * self._block_tokens - growth_tokens
        return min(self.runner.geometry.max_model_tokens - 1, room)

    def reserve(self, request: Request, *, growth_tokens: int, align_tokens: int | None = None) -> Reservation:
        """Prepare a request and take its blocks at once; raises as `prepare` and `take` do."""
        return self.take(self.prepare(request, growth_tokens=growth_tokens), align_tokens=align_tokens)

    def prepare(self, request: Request, *, growth_tokens: int) -> Prepared:
        """Check and hash a request, which for a long prompt takes milliseconds; takes nothing and needs no lock.

        Raises InvalidRequest or PromptTooLong when it can never be served with room for `growth_tokens` more.
        """
        self.require_servable(request, growth_tokens=growth_tokens)
        known = self.runner.fingerprint
        root = prefix_root(known.model, known.weights, known.adapter, request.cache_salt)
        return Prepared(request, PrefixChain(root, self._block_tokens, request.tokens), growth_tokens)

    def take(self, prepared: Prepared, *, align_tokens: int | None = None) -> Reservation:
        """Take blocks for all tokens of a request and its growth, those of a known prefix included.

        A prefix hit never covers the last token, whose computation yields the next, and is a multiple of `align_tokens`
        (itself a multiple of the block size; unset: one block). Raises Conflict when the request's id is known, Busy when
        there is no room now; a prepared request may be tried again.
        """
        with self._lock:
            sequence = self._sequences.admit(prepared, align_tokens=align_tokens or self._block_tokens, now=self._clock())
            return Reservation(prepared.request, tuple(sequence.blocks), cached_tokens=sequence.num_computed)

    def num_cached_tokens(self, prepared: Prepared, *, align_tokens: int | None = None) -> int:
        """Return the prefix hit that `take` would find now; takes nothing."""
        with self._lock:
            return self._sequences.num_cached_tokens(prepared, align_tokens or self._block_tokens)

    def supplies(self) -> Supplies:
        """Return what requests wait for: how much of it is free and held, and for how long it was held lately."""
        with self._lock:
            return self._sequences.supplies()

    def require_servable(self, request: Request, *, growth_tokens: int) -> None:
        """Raise InvalidRequest or PromptTooLong when `reserve` would refuse the request for ever; takes nothing."""
        tokens, vocab_size = request.tokens, self.runner.fingerprint.vocab_size
        if not request.prompt:
            raise InvalidRequest("the prompt is empty", param="prompt")
        if min(tokens) < 0 or max(tokens) >= vocab_size:
            raise InvalidRequest(f"token ids must lie in [0, {vocab_size})", param="prompt")
        limit = self.max_prompt_tokens(growth_tokens)
        if len(tokens) > limit:
            raise PromptTooLong(f"prompt has {len(tokens)} tokens, this node takes at most {limit}", param="prompt")

    def start(self, request_id: RequestId, *, attempt: Attempt, max_draws: int | None = None, timing: Timing = UNTIMED) -> None:
        """Compute a reserved request here, from its cached prefix on, and draw at most `max_draws` tokens.

        A prefill leg draws one. Events carry `attempt`. Raises LookupError for an unknown request.
        """
        with self._lock:
            sequence = self._sequences[request_id]
            sequence.begin(attempt, timing, self._clock())
            sequence.draws_left = max_draws
        self.work.set()

    def attach(
        self, request_id: RequestId, first_token: int, *, attempt: Attempt, timing: Timing = UNTIMED
    ) -> FinishReason | None:
        """Decode a reserved request from `first_token` on: the KV of all `request.tokens` is in its blocks.

        Publishes the full blocks of the prompt. Returns why the answer ends with `first_token`, or None when it goes on; no
        event is emitted for it. Raises LookupError for an unknown request.
        """
        with self._lock:
            sequence = self._sequences[request_id]
            sequence.begin(attempt, timing, self._clock())
            sequence.num_computed = sequence.num_tokens
            self._sequences.publish(sequence)
            finish = self._sequences.append(sequence, first_token)
        self.work.set()
        return finish

    def pause(self, request_id: RequestId) -> bool:
        """Compute a request no more until `resume`; it keeps its place and its blocks. Returns whether it can go on at all.

        Steps that are launched still bring their tokens. When blocks are short it is the first to be preempted.
        """
        with self._lock:
            sequence = self._sequences.get(request_id)
            if sequence is None or sequence.phase not in PLACED:
                return False
            sequence.is_paused = True
            return True

    def resume(self, request_id: RequestId) -> None:
        """Let a paused request go on; does nothing for any other."""
        with self._lock:
            if sequence := self._sequences.get(request_id):
                sequence.is_paused = False
        self.work.set()

    def end(self, request_id: RequestId) -> None:
        """Compute a request no more; its blocks stay until `release`, which comes when nothing writes into them any more.

        Nobody is preempted for want of blocks that come back so. Does nothing for an unknown or ended request.
        """
        with self._lock:
            sequence = self._sequences.get(request_id)
            if sequence and sequence.phase not in (Phase.ENDING, Phase.RELEASED):
                sequence.move_to(Phase.ENDING)

    def release(self, request_id: RequestId) -> bool:
        """End a request in whatever phase; idempotent. Returns whether it was known.

        Its blocks are free at once, or when the last launched step that may touch them commits.
        """
        with self._lock:
            sequence = self._sequences.get(request_id)
            if sequence is None or sequence.phase is Phase.RELEASED:
                return False
            sequence.move_to(Phase.RELEASED)
            if not sequence.num_flights:
                self._sequences.forget(sequence, now=self._clock())
        self.work.set()
        return True

    def knows(self, request_id: RequestId) -> bool:
        """Return whether the request still has blocks, be it that launched steps use them after its release."""
        with self._lock:
            return self._sequences.get(request_id) is not None

    def purge(self, blocks: Iterable[BlockId]) -> None:
        """Take blocks whose contents are not to be trusted, and all that follows them, out of the prefix cache."""
        with self._lock:
            self._pool.purge(blocks)

    def ranking(self) -> Ranking:
        """Return what ranks requests now, running or not."""
        with self._lock:
            return self._planner.ranking(self._clock())

    def hopeless(self) -> list[RequestId]:
        """Return the requests that cannot be answered by their deadlines any more, if such ones are to be refused."""
        with self._lock:
            return self._planner.hopeless(self._clock())

    def block_news(self, first: int) -> BlockNews:
        """Return how the prefix cache has changed since its event number `first`, or all of it when that is too long ago."""
        with self._lock:
            return self._pool.news(first)

    def load(self) -> Load:
        with self._lock:
            placed = self._sequences.select(*PLACED)
            started = [one for one in placed if one.phase is not Phase.RESERVED]
            num_running = sum(one.phase is Phase.RUNNING and not one.is_paused for one in placed)
            queued_tokens = sum(one.num_pending for one in started if one.num_pending > 1)
            return Load(self._num_steps, num_running, len(placed) - num_running, queued_tokens)

    def occupancy(self) -> Occupancy:
        """Count the blocks by state, at once; `census` counts them anew from the block table."""
        with self._lock:
            total, available, cached = self._pool.num_blocks, self._pool.num_available, self._pool.num_cached
        return Occupancy(free=available - cached, cached=cached, referenced=total - available, total=total)

    def census(self, owners: Callable[[], Collection[RequestId]] | None = None) -> Census:
        """Count all blocks anew from the block table. One is orphaned when none of its owners is alive.

        `owners` tells who is; unset: whoever the engine knows. Whoever comes or goes meanwhile counts as alive.
        """
        before = owners() if owners else ()
        table, holders = self._picture()
        return table.census({*before, *owners(), *_ending(holders)} if owners else holders)

    def ledger(self, owners: Callable[[], Collection[RequestId]] | None = None) -> Ledger:
        """List who holds which blocks, anew from the block table; `owners` tells who is alive, as for `census`."""
        before = owners() if owners else ()
        table, holders = self._picture()
        alive = {*before, *owners(), *_ending(holders)} if owners else holders.keys()
        return table.ledger({request: holder for request, holder in holders.items() if request in alive})

    def audit(self) -> tuple[str, ...]:
        """Recompute all accounts; returns what does not add up, a line each."""
        with self._lock:
            pool = self._pool.tables()
            sequences = {one.request.id: tuple(one.blocks) for one in self._sequences.select() if one.blocks}
        return audit_pool(pool, sequences)

    def requests(self) -> frozenset[RequestId]:
        """Return the requests that have not been released."""
        with self._lock:
            return frozenset(one.request.id for one in self._sequences.select() if one.phase is not Phase.RELEASED)

    def step(self) -> StepResult | None:
        """Schedule, run, commit. Returns None when there is nothing to compute. Raises EngineFault."""
        while len(self._flights) < self.runner.depth and (batch := self._next_batch()):
            self._flights.append(self._launch(batch))
        if not self._flights:
            self._timer.rest()
            return None
        flight = self._flights.popleft()
        ran = flight.collect()
        took = self._timer.collected(flight.launch, ran.gap_s)
        with self._lock:
            return self._commit(flight.batch, ran.drawn, took)

    def _next_batch(self) -> Batch | None:
        with self._lock:
            return self._schedule()

    def _launch(self, batch: Batch) -> _Flight:
        launch = self._timer.launch()
        return _Flight(batch, launch, self.runner.launch(batch, lambda layers: self._on_layers(batch, layers)))

    def _picture(self) -> tuple[BlockTable, dict[RequestId, Holder]]:
        with self._lock:
            now, table = self._clock(), self._pool.table()
            return table, {one.request.id: Holder(one.phase, now - one.since) for one in self._sequences.select()}

    def _schedule(self) -> Batch | None:
        sequences, planned = self._sequences, self._planner.next_step(self._clock())
        self._preempted += planned.preempted
        self._token_budget = planned.token_budget
        if not planned.runs:
            self.work.clear()
            return None
        for run in planned.runs:
            sequences.grow(sequences[run.request], run.num_new_blocks)
        return Batch(tuple(sequences[run.request].launch(run.num_tokens) for run in planned.runs))

    def _commit(self, batch: Batch, drawn: list[Drawn], took: RunTime) -> StepResult:
        record = self._record(batch, took)
        self._planner.learn(batch, took.duration_s)
        events: list[TokenEvent] = []
        faults: list[tuple[RequestId, ServingError]] = []
        for chunk, result in zip(batch.chunks, drawn, strict=True):
            sequence = self._sequences[chunk.request]
            sequence.land(chunk)
            if sequence.phase is Phase.RELEASED and not sequence.num_flights:
                self._sequences.forget(sequence, now=self._clock())
            elif sequence.phase is not Phase.RUNNING:
                # It has ended since the step was launched: what that brought is nobody's.
                continue
            elif isinstance(result, RequestFault):
                sequence.move_to(Phase.RESTING)
                # What made it fail may lie in its KV: nobody else is to find that.
                self._pool.purge(sequence.blocks)
                faults.append((chunk.request, result))
            else:
                events += self._advance(sequence, chunk, result)
        preempted, self._preempted = tuple(self._preempted), []
        return StepResult(batch, tuple(events), tuple(faults), preempted, record)

    def _record(self, batch: Batch, took: RunTime) -> StepRecord:
        self._num_steps += 1
        num_prompt = sum(self._sequences[chunk.request].num_prompt_tokens(chunk) for chunk in batch.chunks)
        before, self._num_hit_tokens = self._num_hit_tokens, self._sequences.num_hit_tokens
        return StepRecord(
            number=self._num_steps,
            started_at=took.started_at,
            duration_s=took.duration_s,
            gap_s=took.gap_s,
            num_requests=len(batch.chunks),
            num_decode_tokens=batch.num_tokens - num_prompt,
            num_prompt_tokens=num_prompt,
            num_hit_tokens=self._num_hit_tokens - before,
            num_preempted=len(self._preempted),
            token_budget=self._token_budget,
        )

    def _advance(self, sequence: Sequence, chunk: Chunk, token: int | None) -> list[TokenEvent]:
        sequence.num_computed = chunk.end
        self._sequences.publish(sequence)
        if token is None:
            return []
        index = sequence.next_index
        finish = self._sequences.append(sequence, token)
        return [TokenEvent(chunk.request, sequence.attempt, index, token, finish)]


def _ending(holders: Mapping[RequestId, Holder]) -> list[RequestId]:
    """Return those whose release launched steps hold up: nobody else answers for them."""
    return [request for request, holder in holders.items() if holder.phase == Phase.RELEASED]


def _ignore_layers(batch: Batch, layers: range) -> None:
    """Nobody waits for this engine's layers."""
    del batch, layers
