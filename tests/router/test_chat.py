"""A chat completion from the client's side, over scripted nodes."""

from pathlib import Path

import pytest

from twostep.tests.router.cluster import cluster, events, text_of

pytestmark = pytest.mark.processes


async def test_a_whole_answer_has_text_reason_and_usage(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        reply = await running.chat()
        body = reply.json()
        assert reply.status_code == 200, body
        assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello, world", "refusal": None}
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"] == {
            "prompt_tokens": 19,
            "completion_tokens": 12,
            "total_tokens": 31,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


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
