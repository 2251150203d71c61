"""SmolLM2 in float32 on two prefill and two decode nodes, by OpenAI's client: what the whole system promises."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from tokenizers import Tokenizer

from twostep.cli.model_store.catalogue import models_folder
from twostep.core.ids import Attempt, RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine
from twostep.engine.torch_runner import TorchRunner
from twostep.tests.cli.running import Up, up
from twostep.tests.system.nodes import RunningNode, nodes_of, require_nothing_held

pytestmark = [pytest.mark.processes, pytest.mark.model, pytest.mark.timeout(600)]

BLOCK_TOKENS = 32
TOKEN_BYTES = 30 * 3 * 2 * 64 * 4
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    # A slow machine makes the last of 64 requests wait long: none of them is to be refused for that.
    patience = "--set", "router.queue_s=300"
    options = ("--model", "smollm2", "--prefill", "2", "--decode", "2", "--set", "engine.dtype=float32", *patience)
    with up(tmp_path_factory.mktemp("up"), *options) as running:
        assert running.line.startswith("twostep serves at "), running.ended()
        yield running


@pytest.fixture(scope="module")
def prefill(cluster: Up) -> list[RunningNode]:
    return nodes_of(cluster.folder, "prefill")


@pytest.fixture(scope="module")
def decode(cluster: Up) -> list[RunningNode]:
    return nodes_of(cluster.folder, "decode")


@pytest.fixture
async def client(cluster: Up) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none", timeout=300, max_retries=0) as client:
        yield client


class Solo:
    """One engine alone, one request at a time, its prefix cache never hit: the oracle."""

    def __init__(self, folder: Path) -> None:
        self._config = EngineConfig(dtype="float32", kv_bytes=256 << 20, num_threads=1)
        self._engine = Engine(TorchRunner(folder, self._config), self._config, clock=time.monotonic)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def text(self, prompt: list[int], max_tokens: int) -> str:
        request = Request(
            RequestId(str(random.random())),
            tuple(prompt),
            SamplingParams(seed=0, temperature=0),
            StopRules(max_tokens, ignore_eos=True),
            cache_salt=random.randbytes(8),
        )
        self._engine.reserve(request, growth_tokens=1)
        self._engine.start(request.id, attempt=Attempt(1))
        tokens: list[int] = []
        while (result := self._engine.step()) is not None:
            tokens += [event.token for event in result.events]
        self._engine.release(request.id)
        return self._tokenizer.decode(tokens)


def prompt_of(seed: int) -> list[int]:
    """Return a prompt of SmolLM2's ordinary tokens; one in eight is long."""
    draw = random.Random(seed)
    num_tokens = draw.randint(300, 600) if seed % 8 == 0 else draw.randint(1, 130)
    return [draw.randint(20, 49_000) for _ in range(num_tokens)]


def max_tokens_of(seed: int) -> int:
    return 1 + seed % 12


async def complete(client: AsyncOpenAI, seed: int) -> str:
    answer = await client.completions.create(
        model="smollm2",
        prompt=prompt_of(seed),
        max_tokens=max_tokens_of(seed),
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage
    assert answer.usage.completion_tokens == max_tokens_of(seed)
    return answer.choices[0].text


async def test_openais_client_chats_streamed_and_not(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0)  # type: ignore[call-overload]
    stream = await client.chat.completions.create(  # type: ignore[call-overload]
        model="smollm2", messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.choices[0].message.content == text == "The capital of France is Paris."
    assert whole.choices[0].finish_reason == chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_64_requests_at_once_get_what_one_engine_alone_gives_and_leave_nothing_behind(
    client: AsyncOpenAI, prefill: list[RunningNode], decode: list[RunningNode]
) -> None:
    seeds = range(64)
    computed = sum(node.counted("twostep_prompt_tokens_computed_total") for node in prefill)
    moved = sum(node.counted("twostep_handoff_bytes_total") for node in decode)
    texts = await asyncio.gather(*(complete(client, seed) for seed in seeds))

    lengths = [len(prompt_of(seed)) for seed in seeds]
    # A first token that ends the request is emitted without its KV: nothing crosses for an answer of one token.
    handed_over = [length for seed, length in zip(seeds, lengths, strict=True) if max_tokens_of(seed) > 1]
    in_whole_blocks = sum(-(-length // BLOCK_TOKENS) for length in handed_over) * BLOCK_TOKENS * TOKEN_BYTES
    assert sum(node.counted("twostep_prompt_tokens_computed_total") for node in prefill) - computed == sum(lengths)
    assert [node.counted("twostep_prompt_tokens_computed_total") for node in decode] == [0, 0]
    assert sum(node.counted("twostep_handoff_bytes_total") for node in decode) - moved == in_whole_blocks
    await require_nothing_held([*prefill, *decode])

    solo = Solo(models_folder() / "smollm2")
    assert texts == [solo.text(prompt_of(seed), max_tokens_of(seed)) for seed in seeds]


async def test_a_repeated_prompt_moves_fewer_bytes_and_gets_the_same_answer(client: AsyncOpenAI) -> None:
    prompt = [token + 1 for token in prompt_of(8)]
    replies = [
        await client.completions.create(model="smollm2", prompt=prompt, max_tokens=6, temperature=0, extra_body={"bill": True})
        for _ in range(2)
    ]
    first, second = [
        (reply.choices[0].text, reply.usage.prompt_tokens_details.cached_tokens, reply.choices[0].bill["bytes_moved"])  # type: ignore[union-attr, attr-defined]
        for reply in replies
    ]
    num_full_blocks = (len(prompt) - 1) // BLOCK_TOKENS
    assert first == (second[0], 0, (num_full_blocks + 1) * BLOCK_TOKENS * TOKEN_BYTES)
    assert second[1:] == (num_full_blocks * BLOCK_TOKENS, BLOCK_TOKENS * TOKEN_BYTES)
