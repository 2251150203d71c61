"""Translates between the wire types and the core's: the generated modules go no further than this and the gRPC edges."""

from twostep.core.bill import DecodeBill, PrefillBill
from twostep.core.block_hash import HASH_BYTES
from twostep.core.block_news import BlockNews
from twostep.core.errors import NodeUnavailable, ServingError, error_classes
from twostep.core.fingerprint import Geometry
from twostep.core.ids import Attempt, BlockHash, Generation, Incarnation, NodeId, NodeRef, RequestId
from twostep.core.pace import RatePoint, StepPace
from twostep.core.request import Request, SamplingParams, ServiceLevel, StopRules
from twostep.core.ticket import LandingExtent, Leg, Ticket, TokenRange
from twostep.proto import node_pb2 as pb


def node_to_pb(node: NodeRef) -> pb.NodeRef:
    return pb.NodeRef(id=node.id, incarnation=node.incarnation)


def node_from_pb(wire: pb.NodeRef) -> NodeRef:
    return NodeRef(NodeId(wire.id), Incarnation(wire.incarnation))


def geometry_to_pb(geometry: Geometry) -> pb.Geometry:
    return pb.Geometry(
        block_tokens=geometry.block_tokens,
        max_model_tokens=geometry.max_model_tokens,
        layer_group=geometry.layer_group,
        first_head=geometry.first_head,
        end_head=geometry.end_head,
        tp_size=geometry.tp_size,
    )


def geometry_from_pb(wire: pb.Geometry) -> Geometry:
    return Geometry(
        block_tokens=wire.block_tokens,
        max_model_tokens=wire.max_model_tokens,
        layer_group=wire.layer_group,
        first_head=wire.first_head,
        end_head=wire.end_head,
        tp_size=wire.tp_size,
    )


def request_to_pb(request: Request) -> pb.GenerateRequest:
    wire = pb.GenerateRequest()
    fill_request(wire, request)
    return wire


def fill_request(wire: pb.GenerateRequest, request: Request) -> None:
    """Write `request` into an empty message, where it is to stay: a message that is put into another one is copied."""
    sampling, stop = request.sampling, request.stop
    wire.id = request.id
    wire.prompt.extend(request.prompt)
    wire.output_tokens.extend(request.output_tokens)
    wire.cache_salt = request.cache_salt
    wire.sampling.seed = sampling.seed
    wire.sampling.temperature = sampling.temperature
    wire.sampling.top_k = sampling.top_k
    wire.sampling.top_p = sampling.top_p
    wire.sampling.min_p = sampling.min_p
    wire.stop.max_tokens = stop.max_tokens
    wire.stop.eos_ids.extend(sorted(stop.eos_ids))
    wire.stop.stop_ids.extend(sorted(stop.stop_ids))
    wire.stop.ignore_eos = stop.ignore_eos
    wire.level.CopyFrom(_level_to_pb(request.level))


def request_from_pb(wire: pb.GenerateRequest) -> Request:
    sampling, stop = wire.sampling, wire.stop
    return Request(
        id=RequestId(wire.id),
        prompt=tuple(wire.prompt),
        output_tokens=tuple(wire.output_tokens),
        sampling=SamplingParams(
            seed=sampling.seed,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
        ),
        stop=StopRules(
            max_tokens=stop.max_tokens,
            eos_ids=frozenset(stop.eos_ids),
            stop_ids=frozenset(stop.stop_ids),
            ignore_eos=stop.ignore_eos,
        ),
        cache_salt=wire.cache_salt,
        level=_level_from_pb(wire.level),
    )


def _level_to_pb(level: ServiceLevel) -> pb.ServiceLevel:
    return pb.ServiceLevel(priority=level.priority, tenant=level.tenant, ttft_s=level.ttft_s, tpot_s=level.tpot_s)


def _level_from_pb(wire: pb.ServiceLevel) -> ServiceLevel:
    return ServiceLevel(
        priority=wire.priority,
        tenant=wire.tenant,
        ttft_s=wire.ttft_s if wire.HasField("ttft_s") else None,
        tpot_s=wire.tpot_s if wire.HasField("tpot_s") else None,
    )


def leg_to_pb(leg: Leg) -> pb.Leg:
    return pb.Leg(
        request=leg.request,
        attempt=leg.attempt,
        source=node_to_pb(leg.source),
        destination=node_to_pb(leg.destination),
        source_rank=leg.source_rank,
        destination_rank=leg.destination_rank,
    )


def leg_from_pb(wire: pb.Leg) -> Leg:
    return Leg(
        request=RequestId(wire.request),
        attempt=Attempt(wire.attempt),
        source=node_from_pb(wire.source),
        destination=node_from_pb(wire.destination),
        source_rank=wire.source_rank,
        destination_rank=wire.destination_rank,
    )


def ticket_to_pb(ticket: Ticket) -> pb.Ticket:
    extent = ticket.extent
    return pb.Ticket(
        leg=leg_to_pb(ticket.leg),
        missing=pb.TokenRange(start=ticket.missing.start, end=ticket.missing.end),
        token_digest=ticket.token_digest,
        extent=pb.LandingExtent(
            offset=extent.offset, num_bytes=extent.num_bytes, num_slots=extent.num_slots, generation=extent.generation
        ),
        registration=ticket.registration,
        first_head=ticket.first_head,
        end_head=ticket.end_head,
        cache_salt=ticket.cache_salt,
        remaining_s=ticket.remaining_s,
        num_choices=ticket.num_choices,
    )


def ticket_from_pb(wire: pb.Ticket) -> Ticket:
    extent = wire.extent
    return Ticket(
        leg=leg_from_pb(wire.leg),
        missing=TokenRange(wire.missing.start, wire.missing.end),
        token_digest=wire.token_digest,
        extent=LandingExtent(extent.offset, extent.num_bytes, extent.num_slots, Generation(extent.generation)),
        registration=wire.registration,
        first_head=wire.first_head,
        end_head=wire.end_head,
        cache_salt=wire.cache_salt,
        remaining_s=wire.remaining_s,
        num_choices=wire.num_choices,
    )


def prefill_bill_to_pb(bill: PrefillBill) -> pb.PrefillBill:
    return pb.PrefillBill(
        queue_s=bill.queue_s,
        compute_s=bill.compute_s,
        transfer_s=bill.transfer_s,
        exposed_s=bill.exposed_s,
        cached_tokens=bill.cached_tokens,
        computed_tokens=bill.computed_tokens,
        bytes_sent=bill.bytes_sent,
        handover_s=bill.handover_s,
    )


def prefill_bill_from_pb(wire: pb.PrefillBill) -> PrefillBill:
    return PrefillBill(
        queue_s=wire.queue_s,
        compute_s=wire.compute_s,
        transfer_s=wire.transfer_s,
        exposed_s=wire.exposed_s,
        cached_tokens=wire.cached_tokens,
        computed_tokens=wire.computed_tokens,
        bytes_sent=wire.bytes_sent,
        handover_s=wire.handover_s,
    )


def decode_bill_to_pb(bill: DecodeBill) -> pb.DecodeBill:
    return pb.DecodeBill(
        queue_s=bill.queue_s,
        attach_s=bill.attach_s,
        first_step_s=bill.first_step_s,
        decode_s=bill.decode_s,
        num_steps=bill.num_steps,
        cached_tokens=bill.cached_tokens,
        computed_prompt_tokens=bill.computed_prompt_tokens,
        bytes_landed=bill.bytes_landed,
    )


def decode_bill_from_pb(wire: pb.DecodeBill) -> DecodeBill:
    return DecodeBill(
        queue_s=wire.queue_s,
        attach_s=wire.attach_s,
        first_step_s=wire.first_step_s,
        decode_s=wire.decode_s,
        num_steps=wire.num_steps,
        cached_tokens=wire.cached_tokens,
        computed_prompt_tokens=wire.computed_prompt_tokens,
        bytes_landed=wire.bytes_landed,
    )


def error_to_pb(error: ServingError) -> pb.Error:
    return pb.Error(
        code=error.code,
        message=error.message,
        param=error.param or "",
        retry_elsewhere=error.retry_elsewhere,
        retry_after_s=error.retry_after_s or 0.0,
    )


def error_from_pb(wire: pb.Error) -> ServingError:
    """Rebuild the error that the other side raised.

    A code unknown here becomes a plain ServingError, or a NodeUnavailable when the other side says that another node may help.
    """
    unknown = NodeUnavailable if wire.retry_elsewhere else ServingError
    known = error_classes().get(wire.code, unknown)
    return known(wire.message, param=wire.param or None, retry_after_s=wire.retry_after_s or None)


def block_news_to_pb(news: BlockNews) -> pb.BlockNews:
    return pb.BlockNews(
        first=news.first,
        next=news.next,
        stored=b"".join(news.stored),
        evicted=b"".join(news.evicted),
        snapshot=news.is_snapshot,
    )


def block_news_from_pb(wire: pb.BlockNews) -> BlockNews:
    """Raises ValueError when the hashes are not whole."""
    return BlockNews(wire.first, wire.next, _hashes(wire.stored), _hashes(wire.evicted), wire.snapshot)


def _hashes(joined: bytes) -> tuple[BlockHash, ...]:
    if len(joined) % HASH_BYTES:
        raise ValueError(f"block hashes have {HASH_BYTES} bytes each, found {len(joined)} bytes")
    return tuple(BlockHash(joined[start : start + HASH_BYTES]) for start in range(0, len(joined), HASH_BYTES))


def rate_point_to_pb(point: RatePoint) -> pb.RatePoint:
    return pb.RatePoint(position=point.position, token_s=point.token_s)


def rate_point_from_pb(wire: pb.RatePoint) -> RatePoint:
    return RatePoint(wire.position, wire.token_s)


def step_pace_to_pb(pace: StepPace) -> pb.StepPace:
    return pb.StepPace(base_s=pace.base_s, sequence_s=pace.sequence_s)


def step_pace_from_pb(wire: pb.StepPace) -> StepPace:
    return StepPace(wire.base_s, wire.sequence_s)
