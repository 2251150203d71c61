"""Text to tokens and back, over scripted nodes: what the replies of vLLM's clients rest on."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from twostep.tests.router.cluster import Cluster, cluster
from twostep.tests.router.tiny_tokenizer import byte_level_tokenizer, write_folder

pytestmark = pytest.mark.processes


async def tokenize(running: Cluster, **fields: Any) -> httpx.Response:
    return await running.http.post("/tokenize", json=fields)


async def detokenize(running: Cluster, **fields: Any) -> httpx.Response:
    return await running.http.post("/detokenize", json=fields)


async def test_a_text_becomes_its_tokens(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        reply = await tokenize(running, prompt="hé", model="fake")
        assert reply.json() == {"count": 3, "max_model_len": 512, "tokens": [104, 0xC3, 0xA9], "token_strs": None}


async def test_messages_become_the_tokens_that_a_chat_completion_starts_from(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        messages = [{"role": "user", "content": "hi"}]
        tokens = (await tokenize(running, messages=messages, add_generation_prompt=True)).json()["tokens"]
        await running.chat(messages=messages)
        assert tokens == list(running.d.seen.reserves[0].request.prompt)


async def test_tokens_become_their_text(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        assert (await detokenize(running, tokens=[104, 0xC3, 0xA9, 300])).json() == {"prompt": "hé<300>"}
        assert (await detokenize(running, tokens=[])).json() == {"prompt": ""}


async def test_a_long_text_goes_there_and_back(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        text = "Prefill, then decode. " * 5000
        tokens = (await tokenize(running, prompt=text)).json()["tokens"]
        assert len(tokens) == len(text)
        assert (await detokenize(running, tokens=tokens)).json()["prompt"] == text


async def test_special_tokens_are_words_of_their_own(tmp_path: Path) -> None:
    async with cluster(tmp_path, model=str(write_folder(tmp_path / "model"))) as running:
        text = "<|im_start|>user\nhe😀<|im_end|>"
        tokens = (await tokenize(running, prompt=text)).json()["tokens"]
        assert tokens == byte_level_tokenizer().encode(text).ids
        assert (await detokenize(running, tokens=tokens)).json()["prompt"] == text


@pytest.mark.parametrize(
    ("path", "body", "message", "param"),
    [
        ("/tokenize", {}, "prompt: Field required", "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt: Input should be a valid string, found ['a']", "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens: Input should be a valid boolean", None),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}, "return_token_strs is not supported", None),
        ("/tokenize", {"messages": []}, "messages: List should have at least 1 item", "messages"),
        ("/detokenize", {}, "tokens: Field required", "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]: Input should be a valid integer, found 'a'", "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]: Input should be greater than or equal to 0", "tokens[0]"),
        ("/detokenize", {"tokens": [1000]}, "tokens: token ids must be below 1000, found 1000", "tokens"),
    ],
)
async def test_a_bad_request_is_refused(
    tmp_path: Path, path: str, body: dict[str, Any], message: str, param: str | None
) -> None:
    async with cluster(tmp_path) as running:
        reply = await running.http.post(path, json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
        assert message in error["message"]
        assert error["param"] == param or param is None


async def test_another_model_is_not_found(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        for reply in (await tokenize(running, prompt="a", model="x"), await detokenize(running, tokens=[1], model="x")):
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


async def test_the_models_page_tells_what_benchmark_clients_look_for(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        [card] = (await running.http.get("/v1/models")).json()["data"]
        assert (card["id"], card["root"], card["max_model_len"]) == ("fake", "fake", 512)
