"""A plain completion from the client's side, over scripted nodes."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from twostep.core.errors import RequestFault
from twostep.proto import node_pb2 as pb
from twostep.tests.router.cluster import Cluster, cluster, events, say, until

pytestmark = pytest.mark.processes


async def complete(running: Cluster, **fields: Any) -> httpx.Response:
    return await running.http.post("/v1/completions", json={"model": "fake", "prompt": "hi", **fields})


def spell(running: Cluster) -> None:
    """Let the node answer a prompt with its first byte as often as may be."""

    def answer(request: pb.GenerateRequest, attempt: int) -> None:
        tokens = [request.prompt[0]] * request.stop.max_tokens
        running.d.emit(request.id, attempt, tokens)
        running.d.finish(request.id, attempt, num_tokens=len(tokens))

    running.d.answer = answer  # type: ignore[method-assign]


def texts(chunks: list[Any]) -> dict[int, str]:
    """Return the text of each choice of a stream, by its index."""
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


async def test_a_whole_answer_has_text_reason_and_usage(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        body = (await complete(running, max_tokens=100)).json()
        assert body["id"].startswith("cmpl-")
        assert body["object"] == "text_completion"
        assert body["choices"] == [{"index": 0, "text": "Hello, world", "logprobs": None, "finish_reason": "length"}]
        assert body["usage"] == {
            "prompt_tokens": 2,
            "completion_tokens": 12,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


async def test_an_answer_has_16_tokens_unless_the_client_says_otherwise(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        spell(running)
        assert (await complete(running)).json()["choices"][0]["text"] == "h" * 16
        assert (await complete(running, max_tokens=None)).json()["usage"]["completion_tokens"] == 16
        nearly_full = await complete(running, prompt="x" * 400)
        assert nearly_full.json()["usage"]["completion_tokens"] == 16
        assert (await complete(running, max_tokens=3)).json()["choices"][0]["text"] == "hhh"


async def test_a_streamed_answer_comes_as_openai_sends_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        reply = await complete(running, max_tokens=100, stream=True, stream_options={"include_usage": True})
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        *chunks, usage, done = events(reply.text)
        assert {chunk["object"] for chunk in chunks} == {"text_completion"}
        assert chunks[0]["choices"] == [{"index": 0, "text": "H", "logprobs": None, "finish_reason": None}]
        assert chunks[-1]["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]
        assert texts(chunks) == {0: "Hello, world"}
        assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 12)
        assert done == "[DONE]"


async def test_a_prompt_of_token_ids_goes_to_the_nodes_as_it_is(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        assert (await complete(running, prompt=[104, 999, 0])).status_code == 200
        assert list(running.d.seen.reserves[0].request.prompt) == [104, 999, 0]


async def test_each_prompt_of_a_batch_has_its_choice_and_the_usage_is_the_sum(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        spell(running)
        body = (await complete(running, prompt=["ab", "b", "ccc"], max_tokens=2)).json()
        assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "aa"), (1, "bb"), (2, "cc")]
        assert body["usage"]["prompt_tokens"] == 6
        assert body["usage"]["completion_tokens"] == 6
        ids = {reserve.request.id for reserve in running.d.seen.reserves}
        assert len(ids) == 3


async def test_a_batch_of_token_ids_is_a_batch_too(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        spell(running)
        body = (await complete(running, prompt=[[97, 1], [98]], max_tokens=2)).json()
        assert [choice["text"] for choice in body["choices"]] == ["aa", "bb"]


async def both_are_in(asked: dict[str, Any]) -> bool:
    return len(asked) == 2


async def test_the_prompts_of_a_batch_run_together_and_their_streams_interleave(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        asked: dict[str, tuple[str, int]] = {}
        running.d.answer = lambda request, attempt: asked.update({chr(request.prompt[0]): (request.id, attempt)})  # type: ignore[method-assign]
        reply = asyncio.create_task(complete(running, prompt=["a", "b"], stream=True, max_tokens=2))
        await until(lambda: both_are_in(asked))
        for index in (0, 1):
            for name in "ba":
                running.d.emit(*asked[name], [ord(name)], first=index)
        for name in "ab":
            running.d.finish(*asked[name], num_tokens=2)
        *chunks, done = events((await reply).text)
        assert done == "[DONE]"
        assert texts(chunks) == {0: "aa", 1: "bb"}
        assert [chunk["choices"][0]["index"] for chunk in chunks][:2] in ([0, 1], [1, 0])


async def test_the_failure_of_one_prompt_is_the_failure_of_the_batch_and_ends_the_others(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:

        def answer(request: pb.GenerateRequest, attempt: int) -> None:
            if request.prompt[0] == ord("b"):
                running.d.fail(request.id, attempt, RequestFault("a NaN in layer 3"))

        running.d.answer = answer  # type: ignore[method-assign]
        reply = await complete(running, prompt=["a", "b"])
        assert reply.status_code == 500
        assert reply.json()["error"]["message"] == "a NaN in layer 3"
        await running.d.cancel_seen.wait(2)
        [other] = [reserve.request.id for reserve in running.d.seen.reserves if reserve.request.prompt[0] == ord("a")]
        assert other in running.d.seen.cancelled


async def test_an_echo_comes_before_the_answer(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        spell(running)
        whole = await complete(running, prompt=["ab", "ö"], echo=True, max_tokens=1)
        assert whole.json()["choices"][0]["text"] == "aba"
        assert whole.json()["usage"]["completion_tokens"] == 2
        of_tokens = await complete(running, prompt=[97, 98, 300], echo=True, max_tokens=1)
        assert of_tokens.json()["choices"][0]["text"] == "ab<300>a"
        streamed = await complete(running, prompt=["ab", "cd"], echo=True, max_tokens=2, stream=True)
        assert texts(events(streamed.text)[:-1]) == {0: "abaa", 1: "cdcc"}


async def test_a_stop_string_ends_the_answer_before_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        body = (await complete(running, stop=[", w", "xyz"], max_tokens=100)).json()
        assert body["choices"][0]["text"] == "Hello"
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == 8


async def test_cached_tokens_are_summed_over_the_batch(tmp_path: Path) -> None:
    async with cluster(tmp_path, num_prefill=0, allow_decode_alone=True) as running:
        running.d.cached_tokens = 2
        body = (await complete(running, prompt=["abc", "abd"], max_tokens=100)).json()
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


async def test_each_choice_has_its_own_bill(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        body = (await complete(running, prompt=["a", "b"], bill=True, max_tokens=100)).json()
        assert [choice["bill"]["decode_node"] for choice in body["choices"]] == ["d0", "d0"]
        streamed = events((await complete(running, bill=True, stream=True, max_tokens=100)).text)
        assert streamed[-2]["choices"][0]["bill"]["prefill_node"] == "p0"


async def test_what_is_asked_reaches_the_nodes(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await complete(running, temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, seed=7, ignore_eos=True, stop_token_ids=[9])
        request = running.d.seen.reserves[0].request
        sampling = request.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (0.5, 0.9, 5, 0.1, 7)
        assert (request.stop.ignore_eos, list(request.stop.stop_ids)) == (True, [9])


REFUSED = [
    ({"prompt": None}, "prompt: expected a text, a list of token ids, or a list of such, found None", "prompt"),
    ({"prompt": []}, "found []", "prompt"),
    ({"prompt": 5}, "found 5", "prompt"),
    ({"prompt": ""}, "prompt: the prompt is empty, at least 1 token is needed", "prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]: the prompt is empty", "prompt[1]"),
    ({"prompt": ["a", 1]}, "prompt[1]: expected a text as the prompt before it, found 1", "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt[1]: expected a token id, found 'a'", "prompt[1]"),
    ({"prompt": [1, True]}, "prompt[1]: expected a token id, found True", "prompt[1]"),
    ({"prompt": [-1]}, "prompt[0]: expected a token id, found -1", "prompt[0]"),
    ({"prompt": [1.0]}, "prompt[0]: expected a text or a list of token ids, found 1.0", "prompt[0]"),
    ({"prompt": [[1], [2, None]]}, "prompt[1][1]: expected a token id, found None", "prompt[1][1]"),
    ({"prompt": [[]]}, "prompt[0]: the prompt is empty", "prompt[0]"),
    ({"prompt": [5, 1000]}, "prompt: token ids must be below 1000, found 1000", "prompt"),
    ({"prompt": [5, 1000], "echo": True}, "prompt: token ids must be below 1000, found 1000", "prompt"),
    ({"prompt": [[5], [1 << 31]]}, "prompt[1]: token ids must be below 1000, found 2147483648", "prompt[1]"),
    ({"prompt": ["a"] * 129}, "prompt: at most 128 prompts may come together, found 129", "prompt"),
    ({"prompt": "x" * 500}, "prompt: the prompt has 500 tokens, at most 400 fit", "prompt"),
    ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1, found 0", "max_tokens"),
    ({"max_tokens": 600}, "so max_tokens can be 510 at most, found 600", "max_tokens"),
    ({"suffix": "x"}, "suffix is not supported, found 'x'", "suffix"),
    ({"suffix": ""}, "suffix is not supported, found ''", "suffix"),
    ({"n": 2}, "n is not supported; only 1 is accepted, found 2", "n"),
    ({"best_of": 2}, "best_of is not supported; only 1 is accepted, found 2", "best_of"),
    ({"logprobs": 0}, "logprobs is not supported, found 0", "logprobs"),
    ({"logprobs": 5}, "logprobs is not supported, found 5", "logprobs"),
    ({"echo": "yes"}, "echo: Input should be a valid boolean, found 'yes'", "echo"),
    ({"temperature": 3}, "temperature: Input should be less than or equal to 2, found 3", "temperature"),
    ({"stop": ["a"] * 5}, "stop: List should have at most 4 items", "stop"),
    ({"response_format": {"type": "json_object"}}, "response_format is not supported", "response_format"),
]


async def test_a_bad_request_is_refused_with_field_limit_and_value(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        for fields, message, param in REFUSED:
            reply = await complete(running, **fields)
            error = reply.json()["error"]
            assert (reply.status_code, error["param"]) == (400, param), error
            assert message in error["message"]
        assert running.d.seen.reserves == []


async def test_a_body_without_a_prompt_or_for_another_model_is_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        without = await running.http.post("/v1/completions", json={"model": "fake"})
        assert without.json()["error"]["message"] == "prompt: Field required"
        assert (await complete(running, model="other")).status_code == 404
        broken = await running.http.post("/v1/completions", content=b"{")
        assert "not valid JSON" in broken.json()["error"]["message"]


async def test_a_batch_counts_as_many_requests_as_it_has_prompts(tmp_path: Path) -> None:
    async with cluster(tmp_path, max_in_flight=2) as running:
        assert (await complete(running, prompt=["a", "b"])).status_code == 200
        reply = await complete(running, prompt=["a", "b", "c"])
        assert reply.status_code == 413
        assert reply.json()["error"]["message"] == "at most 2 requests are served at once, found 3 in one"


async def test_a_client_that_leaves_ends_all_its_choices(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        running.d.answer = lambda request, attempt: running.d.emit(request.id, attempt, b"x")  # type: ignore[method-assign]
        body = {"prompt": ["a", "b"], "stream": True}
        async with running.http.stream("POST", "/v1/completions", json=body) as reply:
            await anext(reply.aiter_lines())
            await running.p.prefilling.wait(2)
        await running.d.cancel_seen.wait(2)
        assert len(set(running.d.seen.cancelled)) == 2


async def test_openais_client_reads_whole_and_streamed_answers(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
            whole = await client.completions.create(model="fake", prompt=["a", "b"], max_tokens=100)
            assert [choice.text for choice in whole.choices] == ["Hello, world"] * 2
            assert whole.usage is not None
            assert whole.usage.total_tokens == 26
            stream = await client.completions.create(
                model="fake", prompt=[1, 2], max_tokens=100, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
        assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "Hello, world"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.prompt_tokens == 2


async def test_each_finished_choice_says_so_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        say(running.d, b"xy")
        chunks = events((await complete(running, prompt=["a", "b"], stream=True, max_tokens=2)).text)
        finished = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"][0]["finish_reason"]]
        assert sorted(choice["index"] for choice in finished) == [0, 1]


BENCHMARKS = {
    "vllm bench serve": {
        "repetition_penalty": 1.0,
        "max_tokens": 5,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    },
    "guidellm": {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_tokens": 5,
        "stop": None,
        "ignore_eos": True,
    },
    "aiperf": {"prompt": ["hi"], "stream": True, "max_tokens": 5, "stream_options": {"include_usage": True}},
}


@pytest.mark.parametrize("fields", BENCHMARKS.values(), ids=BENCHMARKS)
async def test_benchmark_clients_find_the_events_that_they_count_on(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with cluster(tmp_path) as running:
        spell(running)
        *chunks, finish, usage, done = events((await complete(running, **fields)).text)
        assert [chunk["choices"][0]["text"] for chunk in chunks] == ["h"] * 5
        assert finish["choices"][0]["finish_reason"] == "length"
        assert {chunk["object"] for chunk in (*chunks, finish, usage)} == {"text_completion"}
        # Usage comes alone: a reader that has found choices in an event looks for nothing else there.
        assert usage["choices"] == []
        assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (2, 5)
        assert all("usage" not in chunk for chunk in (*chunks, finish))
        assert done == "[DONE]"
