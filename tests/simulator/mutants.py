"""Defects put into the real code on purpose: each breaks one promise, and the simulator has to notice.

A mutant that survives shows what the scenarios never do, or what nobody looks at.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from twostep.core.digest import digest
from twostep.core.errors import Cancelled
from twostep.core.kv_memory import LandedPiece
from twostep.core.request import StopRules
from twostep.decode_node import progress
from twostep.decode_node.backpressure import Backpressure
from twostep.decode_node.handoff import Handoff
from twostep.decode_node.legs import Legs as DestinationLegs
from twostep.decode_node.node import DecodeNode
from twostep.decode_node.release import Release
from twostep.decode_node.tokens import TokenStreams
from twostep.decode_node.verification import Verification
from twostep.engine.block_log import BlockLog
from twostep.engine.kv_cache import HostKVCache
from twostep.engine.sequence import Phase, Sequence
from twostep.engine.sequence_table import SequenceTable
from twostep.kv_transfer.incoming import IncomingLeg
from twostep.kv_transfer.landing import LandingPool
from twostep.kv_transfer.outgoing import OutgoingLeg
from twostep.kv_transfer.push_plan import PushPlan
from twostep.kv_transfer.receiver import Receiver
from twostep.node.answers import Answers
from twostep.node.handoff_messages import AbortState, Credit
from twostep.node.leases import Leases
from twostep.prefill_node.leg_record import LegRecord
from twostep.prefill_node.leg_runner import LegRunner
from twostep.prefill_node.legs import Legs as SourceLegs
from twostep.router.admission.queue import AdmissionQueue
from twostep.router.nodes.connection import NodeConnection
from twostep.router.nodes.events import Reserved, ReserveFailed, ReserveQueued
from twostep.router.requests.state import RequestState

Patch = AbstractContextManager[Any]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`breaks` is the promise that it breaks; one that `is_rare` does harm in few runs only."""

    name: str
    breaks: str
    apply: Callable[[], Patch]
    is_rare: bool


MUTANTS: list[Mutant] = []


def mutant(breaks: str, *, is_rare: bool = False) -> Callable[[Callable[[], Patch]], Callable[[], Patch]]:
    """Add the decorated maker of a patch to the mutants, under its own name."""

    def add(apply: Callable[[], Patch]) -> Callable[[], Patch]:
        MUTANTS.append(Mutant(apply.__name__, breaks, apply, is_rare))
        return apply

    return add


def mutated(name: str) -> Patch:
    """Apply the mutant of that name for the block; none for an empty one."""
    return next(one for one in MUTANTS if one.name == name).apply() if name else nullcontext()


@contextmanager
def patched(owner: Any, **changes: Any) -> Iterator[None]:
    """Put other attributes into a class or module for the block."""
    saved = {name: owner.__dict__[name] for name in changes}
    for name, value in changes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(owner, name, value)


@contextmanager
def all_of(*patches: Patch) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


# Memory that cannot be spoiled.


@mutant("peers write into landing space only: the decode node hands out its KV cache")
def writes_straight_into_kv_blocks() -> Patch:
    init, hello = Receiver.__init__, DecodeNode._hello_reply

    def init_with_kv(self: Receiver, transport: Any, memory: Any, landing: Any, **options: Any) -> None:
        init(self, transport, memory, memory.region(), **options)

    def hello_with_kv(self: DecodeNode, node: Any, runner: Any) -> Any:
        return replace(hello(self, node, runner), landing=runner.kv.region())

    return all_of(patched(Receiver, __init__=init_with_kv), patched(DecodeNode, _hello_reply=hello_with_kv))


@mutant("landing space given back without proof rests before it is lent again", is_rare=True)
def lends_undrained_landing_at_once() -> Patch:
    give_back = LandingPool.give_back

    def at_once(self: LandingPool, extent: Any, *, proven: bool) -> bool:
        return give_back(self, extent, proven=True)

    return patched(LandingPool, give_back=at_once)


@mutant("drained means that every write has reported done, not that it was let go of")
def calls_a_failed_write_drained() -> Patch:
    failed = OutgoingLeg.failed

    def let_go(self: OutgoingLeg, cause: Any) -> None:
        failed(self, cause)
        self._all_done = True

    return patched(OutgoingLeg, failed=let_go)


@mutant("an abort is answered when the posted writes are over")
def answers_an_abort_at_once() -> Patch:
    async def at_once(self: SourceLegs, abort: Any) -> AbortState:
        found = self.find(abort.leg)
        if found is None:
            return self._parts.record.refuse(abort.leg, abort.generation)
        found.stop(Cancelled("aborted"), tell=False)
        return AbortState.DRAINED

    return patched(SourceLegs, abort=at_once)


@mutant("KV blocks are free when no copy into them runs any more")
def frees_blocks_while_a_copy_runs() -> Patch:
    return patched(Release, _when_quiet=lambda self, handoff, then: then())


@mutant("a ring's slot is credited when its copy is right")
def credits_before_the_copy_matched() -> Patch:
    landed = DestinationLegs.landed

    async def credit_first(self: DestinationLegs, message: Any) -> None:
        if self._find(message.leg, message.generation):
            cells = message.cells
            credit = Credit(message.leg, message.generation, cells.layers, cells.blocks.stop)
            self._parts.background.spawn(self._parts.sources.credit(credit))
        await landed(self, message)

    return patched(DestinationLegs, landed=credit_first)


@mutant("a ring's slot is written again only with a credit")
def writes_a_ring_without_credits() -> Patch:
    take = PushPlan.take

    def without_credit(self: PushPlan) -> Any:
        self._credited = [1 << 20] * len(self._credited)
        return take(self)

    return patched(PushPlan, take=without_credit)


# Verification before attach.


@mutant("it is the copy that is digested, not what lies in landing space")
def digests_the_landing_instead_of_the_copy() -> Patch:
    answer = IncomingLeg._answer

    def look_at_landing(self: IncomingLeg, claim: Any) -> bool:
        for layer in claim.piece.layers:
            for block in claim.piece.blocks:
                if not self._verified._seen[layer, block]:
                    self._digests[layer, block] = _landing_digest(self, layer, block)
        return answer(self, claim)

    return patched(IncomingLeg, _answer=look_at_landing)


def _landing_digest(leg: IncomingLeg, layer: int, block: int) -> int:
    source = leg._source
    piece = LandedPiece(
        range(layer, layer + 1), range(block, block + 1), leg._missing, source.block_tokens, leg.extent.num_slots
    )
    words = HostKVCache(source, 1)._landing_words(leg._memory, piece)
    tokens = piece.tokens_of(block)
    landed = words[layer, block % leg.extent.num_slots, :, : len(tokens)]
    return digest(landed, layer=layer, first_token=tokens.start)


@mutant("complete means that every cell is in, not that as many came as there are", is_rare=True)
def attaches_on_a_count() -> Patch:
    def hear(self: IncomingLeg, piece: Any) -> bool:
        self._num_heard = getattr(self, "_num_heard", 0) + len(piece)
        return _hear(self, piece)

    def count(self: IncomingLeg, claim: Any) -> bool:
        if getattr(self, "_num_heard", 0) < len(self._asked.whole) or claim.piece != self._asked.whole:
            return answer(self, claim)
        claim.digests[:] = np.where(self._copied._seen, claim.digests, self._digests)
        self._copied.fill(claim.piece)
        return answer(self, claim)

    _hear, answer, claim_all = IncomingLeg.hear, IncomingLeg._answer, IncomingLeg.claim_all

    def claim_what_came(self: IncomingLeg, digests: Any) -> Any:
        if getattr(self, "_num_heard", 0) >= len(self._asked.whole):
            whole = self._asked.whole
            self._asked.fill(whole)
        return claim_all(self, digests.copy())

    return patched(IncomingLeg, hear=hear, _answer=count, claim_all=claim_what_came)


@mutant("a copy whose digest differs is never attached")
def attaches_what_does_not_match() -> Patch:
    answer = IncomingLeg._answer

    def believe(self: IncomingLeg, claim: Any) -> bool:
        claim.digests = self._digests[
            claim.piece.layers.start : claim.piece.layers.stop, claim.piece.blocks.start : claim.piece.blocks.stop
        ].copy()
        return answer(self, claim)

    return patched(IncomingLeg, _answer=believe)


@mutant("only verified blocks come into the prefix cache")
def publishes_unverified_blocks() -> Patch:
    verify = Verification.verify

    async def publish_first(self: Verification, handoff: Any, expected: Any, done: Any) -> Any:
        table = self._parts.engine._sequences
        if handoff.leg is expected and (sequence := table.get(handoff.id)):
            computed, sequence.num_computed = sequence.num_computed, sequence.num_tokens
            table.publish(sequence)
            sequence.num_computed = computed
        return await verify(self, handoff, expected, done)

    return patched(Verification, verify=publish_first)


@mutant("done is said when every write is done")
def says_done_before_the_writes_are() -> Patch:
    async def at_once(self: LegRunner, leg: Any, outgoing: Any, *, finished: bool) -> Any:
        (outgoing.abort if finished else outgoing.finish)()
        return outgoing.report()

    return patched(LegRunner, _send_rest=at_once)


# Names and answers.


@mutant("a message of another generation changes nothing", is_rare=True)
def skips_the_generation() -> Patch:
    return patched(DestinationLegs, _find=lambda self, leg, generation: self._parts.handoffs.expecting(leg))


@mutant("a repeated message gets the answer that was given")
def forgets_its_answers() -> Patch:
    return patched(Answers, find=lambda self, key: None)


@mutant("a leg whose abort came first never begins")
def forgets_an_abort_that_comes_first() -> Patch:
    def refuse(self: LegRecord, leg: Any, generation: Any) -> AbortState:
        known = self._states.get(leg)
        return known[1] if known else AbortState.UNKNOWN

    return patched(LegRecord, refuse=refuse)


@mutant("release is idempotent")
def releases_twice() -> Patch:
    return patched(Handoff, is_over=property(lambda self: False))


# Tokens.


@mutant("forced tokens are never drawn again", is_rare=True)
def draws_forced_tokens_again() -> Patch:
    return patched(Sequence, next_index=property(lambda self: len(self.tokens) - len(self.request.tokens)))


@mutant("a router takes tokens of its current attempt only", is_rare=True)
def hears_old_attempts() -> Patch:
    on = RequestState.on

    def any_attempt(self: RequestState, event: Any) -> Any:
        if hasattr(event, "attempt") and 0 < event.attempt < self.attempt:
            event = replace(event, attempt=self.attempt)
        return on(self, event)

    return patched(RequestState, on=any_attempt)


@mutant("a token that is there already is not taken again")
def takes_doubled_tokens() -> Patch:
    emit = TokenStreams.emit

    def twice(self: TokenStreams, router: Any, token: Any) -> None:
        emit(self, router, token)
        if token.index == 1:
            emit(self, router, token)

    return patched(TokenStreams, emit=twice)


@mutant("the stop rules are applied to the first token")
def skips_the_first_tokens_stop_rules() -> Patch:
    finish = StopRules.finish_reason
    return patched(StopRules, finish_reason=lambda self, token, index: finish(self, token, index) if index else None)


@mutant("what was preempted is computed again from its own tokens", is_rare=True)
def resumes_with_stale_blocks() -> Patch:
    take = SequenceTable._take_blocks

    def stale(self: SequenceTable, sequence: Any, num_tokens: int, align_tokens: int) -> bool:
        taken = take(self, sequence, num_tokens, align_tokens)
        if taken and sequence.phase is Phase.PREEMPTED:
            sequence.num_computed = sequence.num_tokens - 1
        return taken

    return patched(SequenceTable, _take_blocks=stale)


# Life.


@mutant("a queued request is alive", is_rare=True)
def lets_queued_requests_die() -> Patch:
    on = RequestState.on
    waiting: set[str] = set()

    def note(self: RequestState, event: Any) -> Any:
        if isinstance(event, ReserveQueued):
            waiting.add(self._request.id)
        elif isinstance(event, Reserved | ReserveFailed):
            waiting.discard(self._request.id)
        return on(self, event)

    live = property(lambda self: frozenset(self._requests) - waiting)
    return all_of(patched(RequestState, on=note), patched(NodeConnection, live=live))


@mutant("a request that was paused goes on when its tokens are read")
def pauses_for_ever() -> Patch:
    return patched(Backpressure, read=lambda self, requests: None)


@mutant("a hung engine is no progress, though its control thread lives", is_rare=True)
def takes_a_hung_engine_for_progress() -> Patch:
    is_progress = progress.is_progress
    return patched(progress, is_progress=lambda before, now: now.phase == "computing" or is_progress(before, now))


@mutant("the requests of a router that is silent for a lease end", is_rare=True)
def keeps_the_requests_of_dead_routers() -> Patch:
    return patched(Leases, expire=lambda self: {})


@mutant("routers know what lies in the prefix caches")
def tells_no_evictions() -> Patch:
    return patched(BlockLog, note_evicted=lambda self, block: None)


@mutant("room at the nodes is given back when a request ends")
def keeps_room_for_those_who_left() -> Patch:
    return patched(AdmissionQueue, leave=lambda self, request, now: None)
