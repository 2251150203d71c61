"""Asks one node by gRPC what it is, does, and who holds its memory: the command line's only gRPC edge."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from twostep.proto import node_pb2 as pb
from twostep.proto import node_pb2_grpc
from twostep.proto.rpc import serving_errors
from twostep.proto.security import PlainText, Security

CALL_S = 5.0
PLAIN_TEXT = PlainText()


@dataclass(frozen=True, slots=True)
class Holding:
    """What one owner holds. `landing_bytes` is 0 when it has no landing space, `attempt` where none is meant.

    `source` writes, `destination` is written to; both are empty where nobody does or is.
    """

    owner: str
    phase: str
    age_s: float
    blocks: tuple[int, ...]
    landing_offset: int
    landing_bytes: int
    generation: int
    attempt: int
    source: str
    destination: str
    cooldown_left_s: float
    writes_in_flight: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every block and landing extent of one node that somebody holds."""

    node: str
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    referenced_blocks: int
    orphaned_blocks: int
    landing_bytes: int
    landing_free_bytes: int
    holdings: tuple[Holding, ...]


async def fetch_transport(address: str, security: Security = PLAIN_TEXT) -> str:
    """Return what carries KV to or from the node at `address`. Raises ServingError."""
    async with _node(address, security) as node:
        description: pb.NodeDescription = await node.Describe(pb.DescribeRequest(), timeout=CALL_S)
        return description.transport


async def fetch_ledger(address: str, security: Security = PLAIN_TEXT) -> Ledger:
    """Return the ledger of the node at `address`. Raises ServingError."""
    async with _node(address, security) as node:
        reply: pb.LedgerReply = await node.Ledger(pb.LedgerRequest(), timeout=CALL_S)
    return Ledger(
        node=reply.node.id,
        total_blocks=reply.total_blocks,
        free_blocks=reply.free_blocks,
        cached_blocks=reply.cached_blocks,
        referenced_blocks=reply.referenced_blocks,
        orphaned_blocks=reply.orphaned_blocks,
        landing_bytes=reply.landing_bytes,
        landing_free_bytes=reply.landing_free_bytes,
        holdings=tuple(map(_holding, reply.entries)),
    )


def _holding(entry: pb.LedgerEntry) -> Holding:
    return Holding(
        owner=entry.owner,
        phase=entry.phase,
        age_s=entry.age_s,
        blocks=tuple(entry.blocks),
        landing_offset=entry.landing_offset,
        landing_bytes=entry.landing_bytes,
        generation=entry.generation,
        attempt=entry.attempt,
        source=entry.source,
        destination=entry.destination,
        cooldown_left_s=entry.cooldown_left_s,
        writes_in_flight=entry.writes_in_flight,
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step, `age_s` before the answer. `gap_s` is None where the engine had nothing to do before it."""

    number: int
    age_s: float
    duration_s: float
    gap_s: float | None
    requests: int
    decode_tokens: int
    prompt_tokens: int
    hit_tokens: int
    preempted: int
    token_budget: int


@dataclass(frozen=True, slots=True)
class Span:
    """One phase of one attempt of a request; one that goes on lasts until the answer."""

    request: str
    attempt: int
    phase: str
    age_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class Trace:
    """What a node did lately, in order of ends."""

    node: str
    steps: tuple[Step, ...]
    spans: tuple[Span, ...]


async def fetch_trace(address: str, within_s: float | None, security: Security = PLAIN_TEXT) -> Trace:
    """Return what the node at `address` did lately, or in the last `within_s` seconds. Raises ServingError."""
    async with _node(address, security) as node:
        reply: pb.TraceReply = await node.Trace(pb.TraceRequest(within_s=within_s), timeout=CALL_S)
    return Trace(reply.node.id, tuple(map(_step, reply.steps)), tuple(map(_span, reply.spans)))


def _step(step: pb.TracedStep) -> Step:
    return Step(
        number=step.number,
        age_s=step.age_s,
        duration_s=step.duration_s,
        gap_s=step.gap_s if step.HasField("gap_s") else None,
        requests=step.requests,
        decode_tokens=step.decode_tokens,
        prompt_tokens=step.prompt_tokens,
        hit_tokens=step.hit_tokens,
        preempted=step.preempted,
        token_budget=step.token_budget,
    )


def _span(span: pb.TracedSpan) -> Span:
    duration_s = span.duration_s if span.HasField("duration_s") else span.age_s
    return Span(span.request, span.attempt, span.phase, span.age_s, duration_s)


@dataclass(frozen=True, slots=True)
class Load:
    """What a node still has to do, and why it is not given more; an empty reason means that it is."""

    node: str
    num_requests: int
    referenced_blocks: int
    not_ready_reason: str

    @property
    def is_idle(self) -> bool:
        return self.num_requests == self.referenced_blocks == 0


async def cordon(address: str, reason: str, security: Security = PLAIN_TEXT) -> Load:
    """Take the node at `address` out of service, or with no reason back into it. Raises ServingError."""
    async with _node(address, security) as node:
        return _load(await node.Cordon(pb.CordonRequest(reason=reason), timeout=CALL_S))


async def fetch_load(address: str, security: Security = PLAIN_TEXT) -> Load:
    """Return what the node at `address` still has to do. Raises ServingError."""
    async with _node(address, security) as node:
        return _load(await node.Status(pb.StatusRequest(), timeout=CALL_S))


def _load(status: pb.NodeStatus) -> Load:
    return Load(status.node.id, status.num_running + status.num_waiting, status.referenced_blocks, status.not_ready_reason)


@asynccontextmanager
async def _node(address: str, security: Security) -> AsyncIterator[node_pb2_grpc.NodeStub]:
    async with security.open_channel(address) as channel:
        with serving_errors(address):
            yield node_pb2_grpc.NodeStub(channel)  # type: ignore[no-untyped-call]
