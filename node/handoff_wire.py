"""Translates the handoff's messages between the wire and the core, for the gRPC edges of both nodes."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from twostep.core.errors import TransferFailed
from twostep.core.fingerprint import Fingerprint
from twostep.core.ids import Generation
from twostep.core.memory import MemoryRegion
from twostep.node.handoff_messages import (
    Abort,
    AbortState,
    Answer,
    CellDigests,
    Credit,
    Done,
    Failed,
    Hello,
    HelloReply,
    Landed,
    Outcome,
)
from twostep.proto import handoff_pb2 as pb
from twostep.proto.wire import (
    error_from_pb,
    error_to_pb,
    geometry_from_pb,
    geometry_to_pb,
    leg_from_pb,
    leg_to_pb,
    node_from_pb,
    node_to_pb,
)

OUTCOMES: Mapping[Outcome, pb.Outcome] = {
    Outcome.UNKNOWN_LEG: pb.UNKNOWN_LEG,
    Outcome.ATTACHED: pb.ATTACHED,
    Outcome.FINISHED: pb.FINISHED,
    Outcome.MISMATCH: pb.MISMATCH,
    Outcome.ENDED: pb.ENDED,
}
ABORT_STATES: Mapping[AbortState, pb.AbortState] = {
    AbortState.UNKNOWN: pb.ABORT_UNKNOWN,
    AbortState.DRAINED: pb.ABORT_DRAINED,
    AbortState.NOT_DRAINED: pb.ABORT_NOT_DRAINED,
}
ON_WIRE = np.dtype("<u8")
"""A digest as it travels: thousands of them are one field, not as many numbers of Python."""
_OUTCOMES = {wire: outcome for outcome, wire in OUTCOMES.items()}
_ABORT_STATES = {wire: state for state, wire in ABORT_STATES.items()}


def abort_to_pb(abort: Abort) -> pb.AbortRequest:
    answer = abort.answer
    return pb.AbortRequest(
        leg=leg_to_pb(abort.leg), generation=abort.generation, outcome=OUTCOMES[answer.outcome], reason=answer.reason
    )


def abort_from_pb(wire: pb.AbortRequest) -> Abort:
    answer = Answer(outcome_from_pb(wire.outcome), wire.reason)
    return Abort(leg_from_pb(wire.leg), Generation(wire.generation), answer)


def outcome_from_pb(wire: pb.Outcome) -> Outcome:
    """What a later version may say: the leg has ended, and nothing was taken over."""
    return _OUTCOMES.get(wire, Outcome.ENDED)


def abort_state_from_pb(wire: pb.AbortState) -> AbortState:
    """What a later version may say proves nothing."""
    return _ABORT_STATES.get(wire, AbortState.UNKNOWN)


def answer_to_pb(answer: Answer) -> pb.DoneReply:
    return pb.DoneReply(outcome=OUTCOMES[answer.outcome], reason=answer.reason, mismatched_blocks=answer.mismatched_blocks)


def answer_from_pb(wire: pb.DoneReply) -> Answer:
    return Answer(outcome_from_pb(wire.outcome), wire.reason, wire.mismatched_blocks)


def cells_to_pb(cells: CellDigests) -> pb.DigestBlock:
    return pb.DigestBlock(
        first_layer=cells.layers.start,
        num_layers=len(cells.layers),
        first_block=cells.blocks.start,
        num_blocks=len(cells.blocks),
        digests=cells.digests.astype(ON_WIRE).tobytes(),
    )


def cells_from_pb(wire: pb.DigestBlock) -> CellDigests:
    """Rebuild the digests. Raises TransferFailed when their number is not layers x blocks."""
    if len(wire.digests) != ON_WIRE.itemsize * wire.num_layers * wire.num_blocks or not wire.digests:
        raise TransferFailed(f"{len(wire.digests)} bytes are not digests of {wire.num_layers} x {wire.num_blocks} cells")
    digests = np.frombuffer(wire.digests, ON_WIRE).astype(np.uint64).reshape(wire.num_layers, wire.num_blocks)
    return CellDigests(
        range(wire.first_layer, wire.first_layer + wire.num_layers),
        range(wire.first_block, wire.first_block + wire.num_blocks),
        digests,
    )


def done_to_pb(done: Done) -> pb.DoneRequest:
    return pb.DoneRequest(
        leg=leg_to_pb(done.leg),
        generation=done.generation,
        digests=cells_to_pb(done.cells) if done.cells else None,
        first_token=done.first_token,
        finished=done.finished,
        since_computed_s=done.since_computed_s,
    )


def done_from_pb(wire: pb.DoneRequest) -> Done:
    return Done(
        leg_from_pb(wire.leg),
        Generation(wire.generation),
        wire.first_token,
        cells_from_pb(wire.digests) if wire.HasField("digests") else None,
        wire.finished,
        wire.since_computed_s,
    )


def failed_to_pb(failed: Failed) -> pb.FailedRequest:
    return pb.FailedRequest(
        leg=leg_to_pb(failed.leg),
        generation=failed.generation,
        error=error_to_pb(failed.error),
        drained=failed.drained,
    )


def failed_from_pb(wire: pb.FailedRequest) -> Failed:
    return Failed(leg_from_pb(wire.leg), Generation(wire.generation), error_from_pb(wire.error), wire.drained)


def landed_to_pb(landed: Landed) -> pb.LandedRequest:
    return pb.LandedRequest(leg=leg_to_pb(landed.leg), generation=landed.generation, digests=cells_to_pb(landed.cells))


def landed_from_pb(wire: pb.LandedRequest) -> Landed:
    return Landed(leg_from_pb(wire.leg), Generation(wire.generation), cells_from_pb(wire.digests))


def credit_to_pb(credit: Credit) -> pb.CreditRequest:
    return pb.CreditRequest(
        leg=leg_to_pb(credit.leg),
        generation=credit.generation,
        first_layer=credit.layers.start,
        num_layers=len(credit.layers),
        end_block=credit.end_block,
    )


def credit_from_pb(wire: pb.CreditRequest) -> Credit:
    layers = range(wire.first_layer, wire.first_layer + wire.num_layers)
    return Credit(leg_from_pb(wire.leg), Generation(wire.generation), layers, wire.end_block)


def hello_to_pb(hello: Hello) -> pb.HelloRequest:
    return pb.HelloRequest(
        node=node_to_pb(hello.node),
        fingerprint=hello.fingerprint.as_dict(),
        geometry=geometry_to_pb(hello.geometry),
        handoff_address=hello.handoff_address,
        transport=hello.transport,
    )


def hello_from_pb(wire: pb.HelloRequest) -> Hello:
    return Hello(
        node_from_pb(wire.node),
        Fingerprint.from_dict(dict(wire.fingerprint)),
        geometry_from_pb(wire.geometry),
        wire.handoff_address,
        wire.transport,
    )


def hello_reply_to_pb(reply: HelloReply) -> pb.HelloReply:
    return pb.HelloReply(
        node=node_to_pb(reply.node),
        fingerprint=reply.fingerprint.as_dict(),
        geometry=geometry_to_pb(reply.geometry),
        transport=reply.transport,
        transport_metadata=reply.transport_metadata,
        landing_address=reply.landing.address,
        landing_bytes=reply.landing.num_bytes,
        landing_kind=reply.landing.kind,
        landing_device=reply.landing.device,
        registration=reply.registration,
        probe_offset=reply.probe_offset,
        probe_bytes=reply.probe_bytes,
        generation=reply.generation,
    )


def hello_reply_from_pb(wire: pb.HelloReply) -> HelloReply:
    kind: Literal["DRAM", "VRAM"] = "VRAM" if wire.landing_kind == "VRAM" else "DRAM"
    return HelloReply(
        node_from_pb(wire.node),
        Fingerprint.from_dict(dict(wire.fingerprint)),
        geometry_from_pb(wire.geometry),
        wire.transport,
        wire.transport_metadata,
        MemoryRegion(wire.landing_address, wire.landing_bytes, kind, wire.landing_device),
        wire.registration,
        wire.probe_offset,
        wire.probe_bytes,
        Generation(wire.generation),
    )
