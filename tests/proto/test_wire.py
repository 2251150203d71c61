"""Every value that crosses the wire arrives as it was sent, in every field."""

from dataclasses import fields, replace
from typing import Any

import pytest

from twostep.core.bill import DecodeBill, PrefillBill
from twostep.core.block_news import BlockNews
from twostep.core.errors import NodeUnavailable, QueueFull, ServingError, error_classes
from twostep.core.fingerprint import Geometry
from twostep.core.ids import Attempt, BlockHash, Generation, Incarnation, NodeId, NodeRef, RequestId
from twostep.core.pace import RatePoint, StepPace
from twostep.core.request import Request, SamplingParams, ServiceLevel, StopRules
from twostep.core.ticket import LandingExtent, Leg, Ticket, TokenRange
from twostep.proto import node_pb2, wire

NODE = NodeRef(NodeId("prefill-0"), Incarnation((1 << 63) - 1))
OTHER = NodeRef(NodeId("decode-0"), Incarnation(1))
LEG = Leg(RequestId("req-1"), Attempt(2), NODE, OTHER, source_rank=3, destination_rank=4)
TICKET = Ticket(
    leg=LEG,
    missing=TokenRange(64, 1000),
    token_digest=b"digest",
    extent=LandingExtent(offset=1 << 40, num_bytes=1 << 33, num_slots=30, generation=Generation(7)),
    registration=2,
    first_head=1,
    end_head=3,
    cache_salt=b"salt",
    remaining_s=1.5,
    num_choices=2,
)
REQUEST = Request(
    id=RequestId("req-1"),
    prompt=(1, 2, (1 << 32) - 1),
    sampling=SamplingParams(seed=(1 << 64) - 1, temperature=0.7, top_k=40, top_p=0.9, min_p=0.05),
    stop=StopRules(max_tokens=5, eos_ids=frozenset({2, 0}), stop_ids=frozenset({9}), ignore_eos=True),
    output_tokens=(4, 5),
    cache_salt=b"\x00\xff",
    level=ServiceLevel(priority=-3, tenant="t", ttft_s=0.5, tpot_s=0.05),
)
VALUES: list[tuple[str, Any]] = [
    ("node", NODE),
    ("geometry", Geometry(block_tokens=32, max_model_tokens=8192, layer_group=6, first_head=1, end_head=3, tp_size=2)),
    ("request", REQUEST),
    ("leg", LEG),
    ("ticket", TICKET),
    ("prefill_bill", PrefillBill(0.1, 0.2, 0.3, 0.4, cached_tokens=5, computed_tokens=6, bytes_sent=1 << 40, handover_s=0.7)),
    ("block_news", BlockNews(7, 9, (BlockHash(b"s" * 16), BlockHash(b"t" * 16)), (BlockHash(b"e" * 16),), is_snapshot=True)),
    ("rate_point", RatePoint(1024, 1e-4)),
    ("step_pace", StepPace(0.01, 0.0002)),
    ("decode_bill", DecodeBill(0.1, 0.2, 0.3, 0.4, 5, 6, 7, bytes_landed=1 << 40)),
]


def over_the_wire(name: str, value: Any) -> Any:
    message = getattr(wire, f"{name}_to_pb")(value)
    return getattr(wire, f"{name}_from_pb")(type(message).FromString(message.SerializeToString()))


@pytest.mark.parametrize(("name", "value"), VALUES, ids=[name for name, _ in VALUES])
def test_a_value_survives_the_wire(name: str, value: Any) -> None:
    assert over_the_wire(name, value) == value


@pytest.mark.parametrize(("name", "value"), VALUES, ids=[name for name, _ in VALUES])
def test_the_test_values_differ_from_the_defaults_in_every_field(name: str, value: Any) -> None:
    """Otherwise a field that is forgotten in the translation would go unseen."""
    empty = getattr(wire, f"{name}_from_pb")(type(getattr(wire, f"{name}_to_pb")(value))())
    names = value._fields if isinstance(value, NodeRef) else [field.name for field in fields(value)]
    assert [name for name in names if getattr(value, name) == getattr(empty, name)] == []


def test_block_hashes_that_are_not_whole_are_refused() -> None:
    with pytest.raises(ValueError, match="block hashes have 16 bytes each, found 17 bytes"):
        wire.block_news_from_pb(node_pb2.BlockNews(stored=b"x" * 17))


def test_a_greedy_request_arrives_greedy() -> None:
    greedy = replace(REQUEST, sampling=SamplingParams(seed=0, temperature=0.0))
    assert over_the_wire("request", greedy) == greedy


@pytest.mark.parametrize("known", error_classes().values())
def test_every_error_arrives_as_the_class_that_was_raised(known: type[ServingError]) -> None:
    arrived = over_the_wire("error", known("too much", param="messages", retry_after_s=2.5))
    assert (type(arrived), arrived.message, arrived.param, arrived.retry_after_s) == (known, "too much", "messages", 2.5)


def test_an_error_without_field_or_wait_arrives_without() -> None:
    arrived = over_the_wire("error", QueueFull("too much"))
    assert (arrived.param, arrived.retry_after_s) == (None, None)


@pytest.mark.parametrize(("retry_elsewhere", "as_what"), [(False, ServingError), (True, NodeUnavailable)])
def test_an_error_of_a_newer_version_arrives_as_a_plain_one_that_may_be_retried_as_told(
    retry_elsewhere: bool, as_what: type[ServingError]
) -> None:
    told = node_pb2.Error(code="from_the_future", message="no idea", retry_elsewhere=retry_elsewhere)
    arrived = wire.error_from_pb(told)
    assert (type(arrived), arrived.message, arrived.retry_elsewhere) == (as_what, "no idea", retry_elsewhere)
