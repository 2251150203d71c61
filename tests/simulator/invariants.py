"""What must hold at every moment of a run, whatever goes wrong: looked at where it happens, with the truth at hand.

The nodes see messages and time; the simulator sees which writes are really on their way, what really lies in the blocks, and
who really lives.
"""

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from twostep.core.ids import Generation, NodeRef
from twostep.core.ticket import Leg
from twostep.kv_transfer.notes import decode_note
from twostep.kv_transfer.transport import WriteState
from twostep.node.leases import Heartbeat, HeartbeatVerdict
from twostep.proto import handoff_pb2
from twostep.proto.wire import leg_from_pb
from twostep.router.nodes.connection import NodeConnection
from twostep.router.nodes.events import TokenArrived
from twostep.router.requests.state import Accept, RequestState
from twostep.tests.simulator.faults import Fate
from twostep.tests.simulator.model import expected_kv
from twostep.tests.simulator.network import Call
from twostep.tests.simulator.transport import Copy, Flight
from twostep.tests.simulator.world import World

Extent = tuple[NodeRef, Generation]


class Invariants:
    """`life_of` finds the node's life that a name belongs to."""

    def __init__(self, world: World, life_of: Callable[[NodeRef], Any], wanted_token: Callable[[str, int], int | None]) -> None:
        self._world = world
        self._life_of = life_of
        self._wanted_token = wanted_token
        self._ended: dict[Extent, tuple[float, bool]] = {}
        self._flights: defaultdict[Leg, list[Flight]] = defaultdict(list)
        self._on_way: dict[Flight, None] = {}
        self._quiet: dict[Leg, str] = {}
        """Legs that their prefill node has called quiet: it may post nothing more."""
        self._answers: dict[tuple[Leg, str], str] = {}
        self._streams: dict[tuple[str, str, int], int] = {}
        self._over: set[tuple[str, str, int]] = set()
        self.at_nodes: dict[tuple[str, str, str], float] = {}
        """Since when a router has a request at the node at an address."""
        self._beats: defaultdict[tuple[str, str], deque[float]] = defaultdict(lambda: deque((0.0, 0.0), maxlen=2))
        self._reserved: set[tuple[str, str, int]] = set()
        self._doubled: set[tuple[str, str, int]] = set()
        self.may_mismatch = False
        """Whether something has happened that spoils a copy."""

    # Writes.

    def on_post(self, flight: Flight) -> None:
        leg = flight.leg = _leg_of(flight)
        flight.extent = self._extent_of(flight)
        self._on_way[flight] = None
        if flight.fate in (Fate.CORRUPT, Fate.SEEN_EARLY):
            self.may_mismatch = True
        if leg is None:
            return
        self._flights[leg].append(flight)
        if leg in self._quiet:
            self._violate("what is called quiet is quiet", f"{_name(leg)}: a write is posted after {self._quiet[leg]}")

    def on_landing(self, flight: Flight, copy: Copy) -> None:
        life = self._life_of(flight.target)
        region = life.node._memory.region()
        start, num_bytes = copy[1] - region.address, copy[2]
        if start < 0 or start + num_bytes > region.num_bytes:
            self._violate(
                "peers write into landing space only", f"a write of {flight.writer} lands elsewhere in {flight.target}"
            )
        for loan in life.node.parts.landing.ledger():
            overlaps = loan.extent.offset < start + num_bytes and start < loan.end
            if overlaps and flight.extent and loan.extent.generation != flight.extent[1]:
                self._judge_late_write(flight, life, loan.extent.generation)

    def _judge_late_write(self, flight: Flight, life: Any, victim: Generation) -> None:
        assert flight.extent is not None
        self.may_mismatch = True
        ended = self._ended.get(flight.extent)
        if flight.fate is Fate.SEEN_EARLY or ended is None:
            return
        at_s, proven = ended
        rested_s = self._world.now - at_s
        if proven or rested_s < life.config.timers.landing_cooldown_s - 1e-6:
            how = "on a false proof" if proven else f"after {rested_s:.3f} s"
            self._violate(
                "landing space is lent again only when it is quiet", f"extent {flight.extent[1]} was, {how}: {victim} is hit"
            )

    def _unfinished(self, leg: Leg) -> list[Flight]:
        return [one for one in self._flights[leg] if one.copies and one.fate not in (Fate.SEEN_EARLY, Fate.FAILED)]

    def _extent_of(self, flight: Flight) -> Extent | None:
        """Return which loan a write was granted by: its note says so, a probe's place is looked up."""
        if flight.leg is not None:
            return flight.target, decode_note(flight.note).generation
        life = self._life_of(flight.target)
        if life is None or life.node is None or life.process.is_dead:
            return None
        start = flight.copies[0][1] - life.node._memory.region().address
        loans = life.node.parts.landing.ledger()
        return next(((flight.target, one.extent.generation) for one in loans if one.extent.offset <= start < one.end), None)

    # Nodes.

    def watch_node(self, life: Any) -> None:
        """Look at what a node that was just built does with blocks and landing space."""
        engine = life.node.parts.engine
        self._watch_publishing(life, engine)
        _after(life.node.parts.leases, "hear", lambda beat, verdict: self._on_verdict(life, beat, verdict))
        if life.role == "prefill":
            return
        parts = life.node.parts
        engine.runner.kv.on_copy = lambda table, positions: self._on_copy(life, table, positions)
        _before(engine, "attach", lambda request, *_, **__: self._on_attach(life, request))
        _before(parts.landing, "give_back", lambda extent, *, proven: self._on_give_back(life, extent, proven))
        _before(parts.sources, "credit", lambda credit: self._on_credit(life, credit))
        _before(parts.answers, "record", lambda leg, answer: self._on_record(leg, str(life.process), answer.outcome.name))

    def _on_give_back(self, life: Any, extent: Any, proven: bool) -> None:
        key = life.ref, extent.generation
        if key not in self._ended or proven:
            self._ended[key] = self._world.now, proven
        if not proven:
            return
        left = [one for one in self._on_way if one.extent == key and one.copies]
        if [one for one in left if one.fate not in (Fate.SEEN_EARLY, Fate.FAILED)]:
            self._violate("a proof of quiet is true", f"extent {extent.generation} of {life.process} is written to")

    def _on_copy(self, life: Any, table: tuple[int, ...], positions: range) -> None:
        engine = life.node.parts.engine
        size = engine.runner.kv.layout.block_tokens
        for place in range(positions.start // size, -(-positions.stop // size)):
            owners = engine._pool._owners[table[place]]
            if len(owners) != 1 or engine._sequences[owners[0]].blocks[place] != table[place]:
                owned = f"which {', '.join(owners)} holds" if owners else "which is free"
                self._violate("copies go into the request's own blocks", f"{life.process}: block {table[place]}, {owned}")

    def _on_attach(self, life: Any, request: Any) -> None:
        sequence = life.node.parts.engine._sequences[request]
        self._compare(life, sequence.request.tokens, sequence.blocks, "no attach on a spoiled copy", request)

    def _on_credit(self, life: Any, credit: Any) -> None:
        found = life.node.parts.handoffs.expecting(credit.leg)
        if found is None:
            return
        handoff, expected = found
        size = handoff.order.source.geometry.block_tokens
        start, end = expected.missing.start, min(expected.missing.start + credit.end_block * size, expected.missing.end)
        tokens, table = handoff.order.request.tokens, handoff.reservation.table
        self._compare(
            life, tokens, table, "no credit before the copy is right", credit.leg.request, (start, end), credit.layers
        )

    def _watch_publishing(self, life: Any, engine: Any) -> None:
        table = engine._sequences
        publish, size = table.publish, engine.runner.kv.layout.block_tokens

        def watched(sequence: Any) -> None:
            before = sequence.num_published
            publish(sequence)
            if sequence.num_published > before:
                tokens = tuple(sequence.tokens[: sequence.num_published * size])
                part = before * size, sequence.num_published * size
                self._compare(life, tokens, sequence.blocks, "only right blocks can be found", sequence.request.id, part)

        table.publish = watched

    def _compare(
        self,
        life: Any,
        tokens: tuple[int, ...],
        table: Any,
        invariant: str,
        request: str,
        part: tuple[int, int] | None = None,
        layers: range | None = None,
    ) -> None:
        """Hold what lies in the blocks against what one engine alone computes for these tokens."""
        kv = life.node.parts.engine.runner.kv
        start, end = part or (0, len(tokens))
        size, seen = kv.layout.block_tokens, layers or range(kv.layout.num_layers)
        if start >= end:
            return
        positions = np.arange(start, end)
        blocks = np.asarray(table)[positions // size]
        right = expected_kv(tokens)
        for layer in seen:
            here = kv.words[layer][blocks, :, positions % size]
            if not np.array_equal(here, right[layer, start:end]):
                wrong = positions[(here != right[layer, start:end]).any(axis=(1, 2))]
                self._violate(invariant, f"{request} at {life.process}: positions {wrong[0]} to {wrong[-1]} of layer {layer}")
                return

    def _on_verdict(self, life: Any, beat: Heartbeat, verdict: HeartbeatVerdict) -> None:
        """A request that its router had there when it sent the last two heartbeats has to be in them."""
        beats = self._beats[beat.router, life.process.address]
        for request in verdict.abandoned:
            since = self.at_nodes.get((beat.router, life.process.address, request))
            if since is not None and since < beats[0]:
                self._violate("no living request is let die", f"{life.process} ends {request}, which its router has there")

    # Messages.

    def on_message(self, call: Call, kind: str, message: Any) -> None:
        look = getattr(self, f"_on_{call.method.lower()}_{kind}", None)
        if look:
            look(call, message)

    def _on_heartbeat_request(self, call: Call, beat: Any) -> None:
        self._beats[beat.router, call.address].append(call.began_at)

    def _on_reserve_request(self, call: Call, order: Any) -> None:
        key = self._server_of(call), order.request.id, order.attempt
        (self._doubled if key in self._reserved else self._reserved).add(key)

    def _on_done_request(self, call: Call, done: handoff_pb2.DoneRequest) -> None:
        leg = self._speaker(call, done)
        early = [one for one in self._flights[leg] if not one.told or one.state is not WriteState.DONE]
        if early:
            self._violate("done is said when all writes are done", f"{_name(leg)}: {len(early)} writes are not")

    def _on_failed_request(self, call: Call, failed: handoff_pb2.FailedRequest) -> None:
        leg = self._speaker(call, failed)
        if failed.drained:
            self._call_quiet(leg, "a failure that said drained")

    def _on_landed_request(self, call: Call, landed: handoff_pb2.LandedRequest) -> None:
        self._speaker(call, landed)

    def _on_abort_request(self, call: Call, abort: handoff_pb2.AbortRequest) -> None:
        call.leg = leg_from_pb(abort.leg)

    def _on_abort_answer(self, call: Call, reply: handoff_pb2.AbortReply) -> None:
        leg = call.leg
        if reply.state == handoff_pb2.ABORT_DRAINED:
            self._call_quiet(leg, "an abort that was answered drained")
        self._quiet.setdefault(leg, "its abort was answered")

    def _on_done_answer(self, call: Call, reply: handoff_pb2.DoneReply) -> None:
        self._on_answer(call.leg, self._server_of(call), handoff_pb2.Outcome.Name(reply.outcome))
        if reply.outcome == handoff_pb2.MISMATCH and not self.may_mismatch:
            self._violate("nothing mismatches without a cause", f"{_name(call.leg)}: {reply.reason}")

    def _on_record(self, leg: Leg, where: str, outcome: str) -> None:
        self._answers.setdefault((leg, where), outcome)

    def _on_answer(self, leg: Leg, where: str, outcome: str) -> None:
        """A leg has one outcome, however often it is asked for; only a node that never knew it may not know it."""
        first = self._answers.setdefault((leg, where), outcome)
        if outcome != first:
            self._violate("one outcome for each leg", f"{_name(leg)} is {first}, then {outcome}")

    def _on_tokens_answer(self, call: Call, batch: Any) -> None:
        where = self._server_of(call)
        for token in batch.tokens:
            key = where, token.request, token.attempt
            wanted = self._wanted_token(token.request, token.index)
            if token.token != wanted:
                self._violate("every token is the oracle's", f"{where} says {token.request}[{token.index}] = {token.token}")
            if key in self._doubled:
                continue
            if key in self._over or token.index != self._streams.get(key, token.index):
                self._violate("each index once", f"{where} says {token.request}[{token.index}] out of turn")
            self._streams[key] = token.index + 1
        for ended in batch.ended:
            key = where, ended.request, ended.attempt
            if key in self._over and key not in self._doubled:
                self._violate("one last word for each attempt", f"{where} ends {ended.request} twice")
            self._over.add(key)

    def _speaker(self, call: Call, message: Any) -> Leg:
        leg = call.leg = leg_from_pb(message.leg)
        life = self._life_of(leg.source)
        if life is None or life.process is not call.client:
            self._violate("nobody speaks for another life", f"{call.client} says {call.method} for {_name(leg)}")
        return leg

    def _call_quiet(self, leg: Leg, why: str) -> None:
        self._quiet[leg] = why
        if left := self._unfinished(leg):
            self._violate("a proof of quiet is true", f"{_name(leg)}: {len(left)} writes are on their way after {why}")

    def _server_of(self, call: Call) -> str:
        return str(call.server)

    def _violate(self, invariant: str, message: str) -> None:
        self._world.violate(invariant, message)


@contextmanager
def watched_acceptance(world: World) -> Iterator[None]:
    """Look at what routers take for tokens."""
    on, take_next = RequestState.on, RequestState.take_next

    def current(state: RequestState) -> set[int]:
        """Of an attempt and the one that hedges it, the first to be heard is the current one from then on."""
        return {state.attempt, state._spare or state.attempt}

    def look_at(state: RequestState, accepted: Any, index: int, attempts: set[int]) -> None:
        right = isinstance(accepted, TokenArrived) and accepted.attempt in attempts and accepted.index == index
        if not right or accepted.attempt != state.attempt:
            world.violate("only the current attempt is heard", f"{accepted} is accepted in attempt {state.attempt}")

    def watched(self: RequestState, event: Any) -> Any:
        attempts = current(self)
        decision = on(self, event)
        if isinstance(decision, Accept):
            look_at(self, event, len(self.tokens) - 1, attempts)
        return decision

    def watched_next(self: RequestState, events: Any) -> int:
        attempts, num_known = current(self), len(self.tokens)
        num_taken = take_next(self, events)
        for index, event in enumerate(events[:num_taken], num_known):
            look_at(self, event, index, attempts)
        return num_taken

    RequestState.on, RequestState.take_next = watched, watched_next  # type: ignore[method-assign]
    try:
        yield
    finally:
        RequestState.on, RequestState.take_next = on, take_next  # type: ignore[method-assign]


@contextmanager
def watched_routers(world: World, at_nodes: dict[tuple[str, str, str], float]) -> Iterator[None]:
    """Look at where routers have their requests, and at errors that are only logged."""
    add, remove, lose = NodeConnection.add, NodeConnection.remove, NodeConnection._lose

    def watched_add(self: NodeConnection, request: Any, guest: Any, work: Any) -> None:
        key = self.client._router, self.client.address, request
        since = at_nodes.get(key, world.now)
        add(self, request, guest, work)
        at_nodes[key] = since

    def watched_remove(self: NodeConnection, request: Any) -> None:
        at_nodes.pop((self.client._router, self.client.address, request), None)
        remove(self, request)

    def watched_lose(self: NodeConnection, reason: str) -> None:
        lose(self, reason)
        here = self.client._router, self.client.address
        for key in [key for key in at_nodes if key[:2] == here and key[2] not in self._requests]:
            del at_nodes[key]

    handler = _ErrorsViolate(world)
    root = logging.getLogger("twostep")
    level, propagate = root.level, root.propagate
    NodeConnection.add, NodeConnection.remove = watched_add, watched_remove  # type: ignore[method-assign]
    NodeConnection._lose = watched_lose  # type: ignore[method-assign]
    root.addHandler(handler)
    root.setLevel(logging.ERROR)
    root.propagate = False
    try:
        yield
    finally:
        NodeConnection.add, NodeConnection.remove = add, remove  # type: ignore[method-assign]
        NodeConnection._lose = lose  # type: ignore[method-assign]
        root.removeHandler(handler)
        root.setLevel(level)
        root.propagate = propagate


class _ErrorsViolate(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._world.violate("no unexpected exception", f"{record.getMessage()}: {record.exc_info[1]!r}")


def _leg_of(flight: Flight) -> Leg | None:
    try:
        return decode_note(flight.note).leg
    except ValueError:
        return None


def _name(leg: Leg) -> str:
    return f"{leg.request} attempt {leg.attempt} from {leg.source.id} to {leg.destination.id}"


def _before(owner: Any, method: str, look: Callable[..., None]) -> None:
    real = getattr(owner, method)

    def watched(*args: Any, **options: Any) -> Any:
        look(*args, **options)
        return real(*args, **options)

    setattr(owner, method, watched)


def _after(owner: Any, method: str, look: Callable[..., None]) -> None:
    real = getattr(owner, method)

    def watched(*args: Any) -> Any:
        result = real(*args)
        look(*args, result)
        return result

    setattr(owner, method, watched)
