"""The gRPC front door from the client's side, over scripted nodes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from twostep.core.errors import RequestFault
from twostep.proto import node_pb2
from twostep.proto import serving_pb2 as pb
from twostep.proto.rpc import ERROR_KEY
from twostep.proto.serving_pb2_grpc import ServingStub
from twostep.router.bill import TTFT_PARTS
from twostep.tests.router.cluster import Cluster, cluster, say, until

pytestmark = pytest.mark.processes

HI = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])


@dataclass(slots=True)
class Said:
    """One answer, put together."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finished: pb.Finished | None = None


@asynccontextmanager
async def client(running: Cluster) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        yield ServingStub(channel)  # type: ignore[no-untyped-call]


async def generate(running: Cluster, request: pb.GenerateRequest, **options: Any) -> Said:
    said = Said()
    async with client(running) as stub:
        async for reply in stub.Generate(request, **{"timeout": 20, **options}):
            said.text += reply.delta.text
            said.tokens += reply.delta.token_ids
            if reply.HasField("finished"):
                assert said.finished is None
                said.finished = reply.finished
    return said


async def refused(running: Cluster, request: pb.GenerateRequest, **options: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await generate(running, request, **options)
    return raised.value


def error_of(status: grpc.aio.AioRpcError) -> node_pb2.Error:
    [packed] = [value for key, value in status.trailing_metadata() or () if key == ERROR_KEY]
    return node_pb2.Error.FromString(packed)


@pytest.mark.parametrize(
    ("asked", "prompt"),
    [
        (pb.GenerateRequest(text="hi"), b"hi"),
        (pb.GenerateRequest(tokens=pb.TokenIds(ids=[104, 105])), b"hi"),
        (pb.GenerateRequest(chat=HI, model="fake"), b"user: hi\nassistant:"),
    ],
)
async def test_text_tokens_and_chat_are_answered_with_text_and_tokens(
    tmp_path: Path, asked: pb.GenerateRequest, prompt: bytes
) -> None:
    async with cluster(tmp_path) as running:
        said = await generate(running, asked)
        assert (said.text, bytes(said.tokens)) == ("Hello, world", b"Hello, world")
        assert said.finished is not None
        assert said.finished.reason == pb.Finished.LENGTH
        assert said.finished.usage == pb.Usage(prompt_tokens=len(prompt), completion_tokens=12, cached_tokens=0)
        assert not said.finished.HasField("bill")
        assert bytes(running.d.seen.reserves[0].request.prompt) == prompt


async def test_what_is_asked_reaches_the_nodes(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await generate(
            running,
            pb.GenerateRequest(
                text="hi",
                sampling=pb.Sampling(temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, seed=(1 << 64) - 1),
                stop=pb.StopRules(max_tokens=12, token_ids=[9], ignore_eos=True),
                cache_salt="ö",
            ),
        )
        request = running.d.seen.reserves[0].request
        sampling = request.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
        assert (sampling.seed, request.cache_salt) == ((1 << 64) - 1, "ö".encode())
        assert (request.stop.max_tokens, list(request.stop.stop_ids), request.stop.ignore_eos) == (12, [9], True)


async def test_an_answer_may_be_as_long_as_fits_unless_the_client_says_otherwise(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await generate(running, pb.GenerateRequest(text="hi"))
        assert running.d.seen.reserves[0].request.stop.max_tokens == 510


async def test_tokens_up_to_a_stop_string_count_and_those_after_it_are_not_shown(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        said = await generate(running, pb.GenerateRequest(text="hi", stop=pb.StopRules(strings=["o, w"])))
        assert (said.text, bytes(said.tokens)) == ("Hell", b"Hello, w")
        assert said.finished is not None
        assert (said.finished.reason, said.finished.usage.completion_tokens) == (pb.Finished.STOP, 8)


async def test_text_held_back_for_a_stop_string_that_never_comes_is_shown_at_the_end(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        said = await generate(running, pb.GenerateRequest(text="hi", stop=pb.StopRules(strings=["world!"])))
        assert said.text == "Hello, world"


async def test_the_bill_is_sent_when_it_is_asked_for(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        said = await generate(running, pb.GenerateRequest(text="hi", bill=True))
        assert said.finished is not None
        bill = said.finished.bill
        assert (bill.prefill_node, bill.decode_node, bill.bytes_moved, bill.attempts) == ("p0", "d0", 640, 1)
        parts = sum(getattr(bill, part) for part in TTFT_PARTS)
        assert parts == pytest.approx(bill.ttft)


INVALID = [
    (pb.GenerateRequest(), "input: expected one of text, tokens, chat, found none", "input"),
    (pb.GenerateRequest(text=""), "text: the prompt is empty", "text"),
    (pb.GenerateRequest(tokens=pb.TokenIds()), "tokens: the prompt is empty", "tokens"),
    (pb.GenerateRequest(tokens=pb.TokenIds(ids=[1000])), "tokens: token ids must be below 1000, found 1000", "tokens"),
    (pb.GenerateRequest(chat=pb.Chat()), "messages: List should have at least 1 item", "messages"),
    (pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="king")])), "messages[0].role", "messages[0].role"),
    (pb.GenerateRequest(text="x" * 401), "text: the prompt has 401 tokens, at most 400 fit", "text"),
    (
        pb.GenerateRequest(text="a", sampling=pb.Sampling(temperature=9)),
        "temperature: Input should be less than",
        "temperature",
    ),
    (pb.GenerateRequest(text="a", sampling=pb.Sampling(top_p=float("nan"))), "top_p: expected a finite number", "top_p"),
    (pb.GenerateRequest(text="a", stop=pb.StopRules(max_tokens=0)), "max_tokens: Input should be greater", "max_tokens"),
    (pb.GenerateRequest(text="a", stop=pb.StopRules(max_tokens=600)), "max_tokens can be 511 at most", "max_tokens"),
    (pb.GenerateRequest(text="a", stop=pb.StopRules(strings=[""])), "stop[0]: String should have at least 1", "stop[0]"),
    (
        pb.GenerateRequest(text="a", stop=pb.StopRules(token_ids=[1000])),
        "stop_token_ids: token ids must be below 1000",
        "stop_token_ids",
    ),
]


async def test_a_bad_request_is_an_invalid_argument_with_field_limit_and_value(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        for request, message, param in INVALID:
            status = await refused(running, request)
            assert status.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert message in (status.details() or "")
            assert error_of(status).param == param
        assert running.d.seen.reserves == []


async def test_every_error_has_its_own_status(tmp_path: Path) -> None:
    async with cluster(tmp_path, max_in_flight=1) as running:
        status = await refused(running, pb.GenerateRequest(text="a", model="x"))
        assert (status.code(), error_of(status).code) == (grpc.StatusCode.NOT_FOUND, "model_not_found")
        running.d.answer = lambda request, attempt: running.d.fail(request.id, attempt, RequestFault("NaN"))  # type: ignore[method-assign]
        status = await refused(running, pb.GenerateRequest(text="a"))
        assert (status.code(), status.details()) == (grpc.StatusCode.INTERNAL, "NaN")
        running.d.answer = lambda request, attempt: None  # type: ignore[method-assign]
        waiting = asyncio.create_task(generate(running, pb.GenerateRequest(text="a")))
        await running.p.prefilling.wait(2)
        status = await refused(running, pb.GenerateRequest(text="a"))
        assert status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error_of(status).retry_after_s == 1.0
        waiting.cancel()


async def test_without_a_ready_node_the_door_is_unavailable(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        running.d.is_ready = False

        async def has_turned_unready() -> bool:
            return (await running.http.get("/ready")).status_code == 503

        await until(has_turned_unready)
        status = await refused(running, pb.GenerateRequest(text="a"))
        assert (status.code(), error_of(status).code) == (grpc.StatusCode.UNAVAILABLE, "no_ready_node")


async def test_a_message_over_the_limit_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path, max_body_bytes=1000) as running:
        status = await refused(running, pb.GenerateRequest(text="x" * 1000))
        assert status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_cancelled_call_ends_both_legs(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        running.p.on_prefill = lambda request: asyncio.get_running_loop().create_future()
        async with client(running) as stub:
            call = stub.Generate(pb.GenerateRequest(text="hi"))
            await running.p.prefilling.wait()
            call.cancel()
        await running.p.cancel_seen.wait()
        await running.d.cancel_seen.wait()
        [request] = {reserve.request.id for reserve in running.d.seen.reserves}
        assert running.p.seen.cancelled == running.d.seen.cancelled == [request]


async def test_a_cancelled_call_ends_decoding_too(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        running.d.answer = lambda request, attempt: running.d.emit(request.id, attempt, b"x")  # type: ignore[method-assign]
        async with client(running) as stub:
            call = stub.Generate(pb.GenerateRequest(text="hi"))
            assert (await call.read()).delta.text == "x"
            call.cancel()
        await running.d.cancel_seen.wait()


async def test_the_callers_deadline_is_the_requests(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        running.d.answer = lambda request, attempt: None  # type: ignore[method-assign]
        status = await refused(running, pb.GenerateRequest(text="hi"), timeout=2)
        assert status.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        # gRPC itself rounds what is left of a deadline up.
        assert 0.0 < running.d.seen.reserves[0].remaining_s < 2.1
        await running.d.cancel_seen.wait()


async def test_no_deadline_is_longer_than_the_routers(tmp_path: Path) -> None:
    async with cluster(tmp_path, request_timeout_s=2) as running:
        running.d.answer = lambda request, attempt: None  # type: ignore[method-assign]
        status = await refused(running, pb.GenerateRequest(text="hi"), timeout=20)
        assert status.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert status.details() == "the request was not done after 2 s"


async def test_the_request_id_comes_back(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, client(running) as stub:
        call = stub.Generate(pb.GenerateRequest(text="hi"), metadata=(("x-request-id", "mine-1"),))
        assert dict(await call.initial_metadata())["x-request-id"] == "mine-1"
        minted = stub.Generate(pb.GenerateRequest(text="hi"))
        assert dict(await minted.initial_metadata())["x-request-id"].startswith("req-")


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_tenant_priority_and_trace_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metadata = (("twostep-tenant", "acme"), ("twostep-priority", "-5"), ("traceparent", TRACE))
    with caplog.at_level("INFO"):
        async with cluster(tmp_path) as running:
            await generate(running, pb.GenerateRequest(text="hi"), metadata=metadata)
            await generate(running, pb.GenerateRequest(text="hi"), metadata=(("traceparent", "nonsense"),))
    first, second = [vars(record) for record in caplog.records if record.getMessage() == "request ended"]
    assert (first["tenant"], first["priority"], first["traceparent"]) == ("acme", "-5", TRACE)
    assert (first["door"], first["outcome"]) == ("grpc Generate", "length")
    assert (first["prompt_tokens"], first["completion_tokens"]) == (2, 12)
    assert "traceparent" not in second


@pytest.mark.parametrize(("key", "value"), [("twostep-tenant", "a b"), ("twostep-priority", "high")])
async def test_malformed_metadata_is_refused(tmp_path: Path, key: str, value: str) -> None:
    async with cluster(tmp_path) as running:
        status = await refused(running, pb.GenerateRequest(text="hi"), metadata=((key, value),))
        assert status.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (error_of(status).param, repr(value) in (status.details() or "")) == (key, True)


async def test_models_and_tokens_can_be_asked_for(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, client(running) as stub:
        [model] = (await stub.Models(pb.ModelsRequest())).models
        assert (model.id, model.max_model_tokens) == ("fake", 512)
        of_text = await stub.Tokenize(pb.TokenizeRequest(text="hi"))
        assert (list(of_text.token_ids), of_text.max_model_tokens) == ([104, 105], 512)
        of_chat = await stub.Tokenize(pb.TokenizeRequest(chat=HI))
        assert bytes(of_chat.token_ids) == b"user: hi\nassistant:"
        assert (await stub.Detokenize(pb.DetokenizeRequest(token_ids=[104, 105]))).text == "hi"
        with pytest.raises(grpc.aio.AioRpcError, match="token ids must be below 1000, found 1000"):
            await stub.Detokenize(pb.DetokenizeRequest(token_ids=[1000]))
        with pytest.raises(grpc.aio.AioRpcError, match="expected one of text, chat, found none"):
            await stub.Tokenize(pb.TokenizeRequest())


async def test_reflection_lists_and_describes_the_services(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        services, method = await asyncio.to_thread(reflect, running.grpc)
        assert {"twostep.serving.v1.Serving", "grpc.health.v1.Health"} <= set(services)
        assert method.input_type.full_name == "twostep.serving.v1.GenerateRequest"


def reflect(address: str) -> tuple[list[str], Any]:
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = list(database.get_services())
        serving = DescriptorPool(database).FindServiceByName("twostep.serving.v1.Serving")
        return services, serving.FindMethodByName("Generate")


async def test_health_tells_readiness_under_the_services_name(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, grpc.aio.insecure_channel(running.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="twostep.serving.v1.Serving"))
        while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
            pass
        alive = await stub.Check(health_pb2.HealthCheckRequest())
        assert alive.status == health_pb2.HealthCheckResponse.SERVING
        running.d.is_ready = False
        while (await watch.read()).status != health_pb2.HealthCheckResponse.NOT_SERVING:
            pass
        watch.cancel()


async def test_a_call_in_flight_ends_well_when_the_router_stops_and_a_new_one_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        given: list[tuple[str, int]] = []
        running.d.answer = lambda request, attempt: given.append((request.id, attempt))  # type: ignore[method-assign]
        answering = asyncio.create_task(generate(running, pb.GenerateRequest(text="hi")))
        await running.p.prefilling.wait()
        async with client(running) as stub:
            running.stop.set()
            while True:
                try:
                    await stub.Tokenize(pb.TokenizeRequest(text="a"))
                except grpc.aio.AioRpcError as status:
                    assert status.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017
                    break
        running.d.emit(*given[0], b"xy")
        running.d.finish(*given[0], num_tokens=2)
        said = await answering
        assert said.text == "xy"
        assert said.finished is not None


async def test_a_client_that_reads_nothing_is_given_up(tmp_path: Path) -> None:
    async with cluster(tmp_path, client_stall_s=0.3, max_buffered_tokens=100_000) as running:

        def flood(request: node_pb2.GenerateRequest, attempt: int) -> None:
            for first in range(0, 400, 10):
                running.d.emit(request.id, attempt, b"x" * 10, first=first)

        running.d.answer = flood  # type: ignore[method-assign]
        options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(running.grpc, options=options) as channel:
            call: Any = ServingStub(channel).Generate(pb.GenerateRequest(text="hi"))  # type: ignore[no-untyped-call]
            await running.d.cancel_seen.wait()
            with pytest.raises(grpc.aio.AioRpcError, match="the client took nothing"):
                [reply async for reply in call]


async def test_the_same_seed_and_prompt_are_the_same_request_at_either_door(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        say(running.d, b"xy")
        await generate(running, pb.GenerateRequest(text="hi", sampling=pb.Sampling(seed=5), stop=pb.StopRules(max_tokens=2)))
        await running.http.post("/v1/completions", json={"prompt": "hi", "seed": 5, "max_tokens": 2})
        over_grpc, over_http = (reserve.request for reserve in running.d.seen.reserves)
        over_http.id = over_grpc.id
        assert over_grpc == over_http
