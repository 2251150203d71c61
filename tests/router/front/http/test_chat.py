"""A chat completion from the client's side, over scripted nodes."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from twostep.core.bill import PrefillBill
from twostep.core.errors import NodeUnavailable
from twostep.proto import node_pb2 as pb
from twostep.router.bill import TTFT_PARTS
from twostep.tests.router.cluster import Cluster, chat_body, cluster, events, read_metric, say, text_of
from twostep.tests.router.fake_nodes import PREFILL_BILL, FakeDecode, FakePrefill

pytestmark = pytest.mark.processes


async def test_a_whole_answer_has_text_reason_and_usage(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        reply = await running.chat()
        body = reply.json()
        assert reply.status_code == 200
        assert body["id"].startswith("chatcmpl-")
        assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello, world", "refusal": None}
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"] == {
            "prompt_tokens": 19,
            "completion_tokens": 12,
            "total_tokens": 31,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        assert "bill" not in body


async def test_a_streamed_answer_comes_as_openai_sends_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        reply = await running.chat(stream=True, stream_options={"include_usage": True})
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        chunks = events(reply.text)
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert chunks[-1] == "[DONE]"
        assert chunks[-2]["choices"] == []
        assert chunks[-2]["usage"]["completion_tokens"] == 12
        assert chunks[-3]["choices"][0]["finish_reason"] == "length"
        assert text_of(chunks) == "Hello, world"


async def test_without_being_asked_a_stream_has_no_usage(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        chunks = events((await running.chat(stream=True)).text)
        assert all("usage" not in chunk for chunk in chunks[:-1])
        assert chunks[-2]["choices"][0]["finish_reason"] == "length"


async def test_tokens_are_streamed_as_they_come(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        _never_finish(running.d, b"a")
        async with running.http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as reply:
            lines = reply.aiter_lines()
            assert '"role":"assistant"' in await anext(lines)
            assert await anext(lines) == ""
            assert '"content":"a"' in await anext(lines)
            assert await anext(lines) == ""
            request = running.d.seen.reserves[0].request.id
            running.d.emit(request, 1, b"b", first=1)
            assert '"content":"b"' in await anext(lines)
            running.d.finish(request, 1)
            assert [line async for line in lines][-2:] == ["data: [DONE]", ""]


async def test_openais_own_client_chats_streamed_and_not(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running, openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        whole = await client.chat.completions.create(model="fake", messages=messages, max_tokens=20)
        assert whole.choices[0].message.content == "Hello, world"
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details is not None
        stream = await client.chat.completions.create(model="fake", messages=messages, stream=True, max_tokens=20)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == "Hello, world"
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert (await client.models.retrieve("fake")).id == "fake"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="gpt-9", messages=messages)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="fake", messages=messages, n=2)
        assert (bad.value.param, bad.value.code) == ("n", "unsupported")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_string_across_tokens_ends_the_answer_and_both_nodes_work(tmp_path: Path, stream: bool) -> None:
    async with cluster(tmp_path) as running:
        _never_finish(running.d, b"Hello, world")
        reply = await running.chat(stop=["o, w"], stream=stream, stream_options={"include_usage": True})
        if stream:
            chunks = events(reply.text)
            assert text_of(chunks) == "Hell"
            assert chunks[-3]["choices"][0]["finish_reason"] == "stop"
            usage = chunks[-2]["usage"]
        else:
            assert reply.json()["choices"][0]["message"]["content"] == "Hell"
            assert reply.json()["choices"][0]["finish_reason"] == "stop"
            usage = reply.json()["usage"]
        assert usage["completion_tokens"] == 8
        await running.d.cancel_seen.wait()
        assert running.d.seen.cancelled == [running.d.seen.reserves[0].request.id]


async def test_a_stop_string_in_the_first_token_leaves_the_prefill_nodes_part_on_the_bill(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        _never_finish(running.d, b"Hello")

        async def answer_after_the_stop(request: pb.PrefillRequest) -> pb.PrefillReply:
            reply = await running.p.compute(request)
            await running.d.cancel_seen.wait()
            return reply

        running.p.on_prefill = answer_after_the_stop
        running.p.bill = replace(PREFILL_BILL, cached_tokens=7)
        body = (await running.chat(stop=["H"], bill=True)).json()
        assert body["bill"]["prefill_computed_tokens"] == 10
        unbilled = (await running.chat(stop=["H"])).json()
        for reply in (body, unbilled):
            assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 7
        assert running.p.seen.cancelled == []


async def test_a_character_split_over_tokens_is_streamed_whole(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        say(running.d, "né😀!".encode())
        chunks = events((await running.chat(stream=True)).text)
        pieces = [chunk["choices"][0]["delta"].get("content") for chunk in chunks[1:-2]]
        assert pieces == ["n", "é", "😀", "!"]


async def test_the_eos_token_counts_but_is_not_shown(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        say(running.d, b"hi\0", "stop")
        body = (await running.chat()).json()
        assert body["choices"][0]["message"]["content"] == "hi"
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == 3


async def test_a_prefix_hit_on_the_prefill_node_is_what_cached_tokens_says(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        running.p.bill = PrefillBill(0.0, 0.0, 0.0, 0.0, cached_tokens=16, computed_tokens=3, bytes_sent=64)
        assert (await running.chat()).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 16


async def test_the_bill_is_sent_when_it_is_asked_for(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:

        async def take_time(request: pb.PrefillRequest) -> pb.PrefillReply:
            await asyncio.sleep(0.01)
            return await running.p.compute(request)

        running.p.on_prefill = take_time
        bill = (await running.chat(bill=True)).json()["bill"]
        assert sum(bill[part] for part in TTFT_PARTS) == pytest.approx(bill["ttft"], abs=1e-5)
        assert (bill["bytes_moved"], bill["attempts"], bill["prefill_node"], bill["decode_node"]) == (640, 1, "p0", "d0")
        # The scripted node says 2 ms, and its answer takes longer.
        assert 0 < bill["prefill"] <= 0.002
        streamed = events((await running.chat(bill=True, stream=True)).text)
        assert streamed[-2]["bill"]["decode_computed_tokens"] == 0


async def test_where_the_time_went_is_in_a_header_and_at_a_streams_end_in_a_comment(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        names = [*(part.replace("_", "-") for part in TTFT_PARTS), "ttft", "total"]
        told = (await running.chat()).headers["server-timing"]
        assert [entry.partition(";dur=")[0] for entry in told.split(", ")] == names
        *_, comment, done, _ = (await running.chat(stream=True)).text.split("\n\n")
        assert done == "data: [DONE]"
        assert [entry.partition(";dur=")[0] for entry in comment.removeprefix(": server-timing: ").split(", ")] == names


async def test_a_request_can_be_explained_by_any_of_its_names(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2) as running:
        running.prefill[0].on_prefill = _refuse_once(running.prefill[0])
        reply = await running.http.post("/v1/chat/completions", json=chat_body(), headers={"x-request-id": "mine"})
        told = (await running.http.get("/requests/mine")).json()
        assert (told["outcome"], told["prompt_tokens"], told["bill"]["attempts"]) == ("length", 19, 2)
        first, second = told["attempts"]
        assert (first["prefill"]["node"], first["decode"]["node"], first["error"]) == ("p0@1", "d0@1", "not now")
        assert (second["prefill"]["node"], second["error"]) == ("p1@1", "")
        assert (first["first_token_s"], first["found_cached_tokens"]) == (None, None)
        assert 0 < second["first_token_s"] < told["bill"]["ttft"]
        assert (second["found_cached_tokens"], second["found_decode_cached_tokens"]) == (0, 0)
        assert (await running.http.get(f"/requests/{reply.json()['id']}")).json() == told
        missing = await running.http.get("/requests/nobody")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "request_not_found")


async def test_the_sums_of_the_parts_are_the_sum_of_the_times_to_the_first_token(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2) as running:
        for prompt in ("a", "b" * 50, "c"):
            await running.chat(messages=[{"role": "user", "content": prompt}], stream=prompt == "c")
        running.prefill[0].on_prefill = _refuse_once(running.prefill[0])
        await running.chat()
        page = (await running.http.get("/metrics")).text
        sums = [read_metric(page, "twostep_router_ttft_part_seconds_sum", part=part) for part in TTFT_PARTS]
        assert all(seconds >= 0 for seconds in sums)
        assert sum(sums) == pytest.approx(read_metric(page, "twostep_router_time_to_first_token_seconds_sum"))
        counts = {read_metric(page, "twostep_router_ttft_part_seconds_count", part=part) for part in TTFT_PARTS}
        assert counts == {4.0}


def _refuse_once(node: FakePrefill) -> Any:
    async def refuse(request: pb.PrefillRequest) -> pb.PrefillReply:
        node.on_prefill = node.compute
        raise NodeUnavailable("not now")

    return refuse


async def test_what_the_client_asks_reaches_both_nodes_alike(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.chat(
            temperature=0.5, top_k=5, top_p=0.9, min_p=0.1, seed=42, ignore_eos=True, stop_token_ids=[3], cache_salt="me"
        )
        reserve, prefill = running.d.seen.reserves[0], running.p.seen.prefills[0]
        assert reserve.request == prefill.request
        assert reserve.request.sampling == pb.Sampling(seed=42, temperature=0.5, top_k=5, top_p=0.9, min_p=0.1)
        assert reserve.request.stop == pb.StopRules(max_tokens=100, eos_ids=[0], stop_ids=[3], ignore_eos=True)
        assert reserve.request.cache_salt == b"me"
        assert reserve.prefill_node.id == "p0"
        assert prefill.ticket.leg.attempt == reserve.attempt == 1


async def test_a_client_names_its_request_but_never_the_nodes_work(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        reply = await running.http.post("/v1/chat/completions", json=chat_body(), headers={"X-Request-Id": "mine-1"})
        assert reply.headers["x-request-id"] == "mine-1"
        assert running.d.seen.reserves[0].request.id.startswith("req-")
        for bad in ("x" * 129, "a b", "a,b"):
            reply = await running.http.post("/v1/chat/completions", json=chat_body(), headers={"X-Request-Id": bad})
            assert reply.headers["x-request-id"] == running.d.seen.reserves[-1].request.id


async def test_many_requests_at_once_each_get_their_own_answer(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=2, num_decode=2) as running:
        for node in running.decode:
            _echo(node)
        texts = [f"question {number}" for number in range(64)]
        replies = await asyncio.gather(*(_ask(running, text) for text in texts))
        assert replies == [f"user: {text}\nassistant:" for text in texts]
        assert min(len(node.seen.reserves) for node in running.decode) > 24


async def test_a_decode_node_serves_alone_where_that_is_allowed_and_it_is_counted(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=0, allow_decode_alone=True) as running:
        body = (await running.chat(bill=True)).json()
        assert body["choices"][0]["message"]["content"] == "Hello, world"
        assert body["bill"]["prefill_node"] is None
        assert not running.d.seen.reserves[0].HasField("prefill_node")
        assert await running.metric("twostep_router_bypass_total", reason="no_prefill_node") == 1


async def test_metrics_count_what_was_answered(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.chat()
        await running.chat(max_tokens=0)
        assert await running.metric("twostep_router_requests_total", outcome="length") == 1
        assert await running.metric("twostep_router_requests_total", outcome="invalid_request") == 1
        assert await running.metric("twostep_router_completion_tokens_total") == 12
        assert await running.metric("twostep_router_in_flight_requests") == 0
        assert await running.metric("twostep_router_node_ready", role="decode") == 1


def _never_finish(node: FakeDecode, tokens: bytes) -> None:
    node.answer = lambda request, attempt: node.emit(request.id, attempt, tokens)  # type: ignore[method-assign]


def _echo(node: FakeDecode) -> None:
    def answer(request: pb.GenerateRequest, attempt: int) -> None:
        node.emit(request.id, attempt, request.prompt)
        node.finish(request.id, attempt)

    node.answer = answer  # type: ignore[method-assign]


async def _ask(running: Cluster, text: str) -> str:
    reply: httpx.Response = await running.chat(messages=[{"role": "user", "content": text}])
    content: str = reply.json()["choices"][0]["message"]["content"]
    return content
