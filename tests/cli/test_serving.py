"""SmolLM2 on two prefill and two decode nodes, met through OpenAI's own client: the promises, kept under load."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from twostep.cli.cluster import Cluster
from twostep.cli.evidence import gather_evidence
from twostep.cli.node_client import Ledger, fetch_ledger
from twostep.tests.cli.running import up

pytestmark = [pytest.mark.processes, pytest.mark.model, pytest.mark.timeout(600)]

NUM_AT_ONCE = 64
TOPICS = ("the sea", "a clock", "Paris", "bread", "winter", "a bridge", "the moon", "chess")
BLOCK_TOKENS = 32
BLOCK_BYTES = BLOCK_TOKENS * 2 * 30 * 3 * 64 * 4
"""K and V of one block in float32: 30 layers, 3 heads, 64 numbers each."""
LONG = "Here is a list of words, please read it with care: " + "one two three four five six seven eight nine ten " * 20


@dataclass(frozen=True, slots=True)
class Asked:
    prompt: str
    max_tokens: int


QUESTIONS = [
    Asked(f"Say something about {TOPICS[number % 8]}. " + "Be brief. " * (number % 13) + f"({number})", 2 + number % 4)
    for number in range(NUM_AT_ONCE)
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pools = ("--model", "smollm2", "--prefill", "2", "--decode", "2")
    engine = ("--set", "engine.dtype=float32", "--set", "engine.kv_bytes=268435456")
    with up(tmp_path_factory.mktemp("up"), *pools, *engine) as running:
        yield running.cluster()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0) as connected:
        yield connected


def arguments(asked: Asked) -> dict[str, Any]:
    messages = [{"role": "user", "content": asked.prompt}]
    return {"model": "smollm2", "messages": messages, "max_tokens": asked.max_tokens, "temperature": 0}


def answer(client: openai.OpenAI, asked: Asked) -> str:
    reply = client.chat.completions.create(**arguments(asked), extra_body={"ignore_eos": True})
    assert reply.usage.completion_tokens == asked.max_tokens
    return str(reply.choices[0].message.content)


def bill(client: openai.OpenAI, asked: Asked) -> tuple[str, dict[str, Any], Any]:
    """Return answer, bill and usage."""
    reply = client.chat.completions.create(**arguments(asked), extra_body={"bill": True})
    return reply.choices[0].message.content, reply.model_extra["bill"], reply.usage


def ledgers(cluster: Cluster) -> list[Ledger]:
    async def fetch() -> list[Ledger]:
        return await asyncio.gather(*(fetch_ledger(node.grpc) for node in (*cluster.prefill, *cluster.decode)))

    return asyncio.run(fetch())


def test_a_streamed_answer_is_the_whole_answer(client: openai.OpenAI) -> None:
    asked = Asked("What is the capital of France?", 32)
    stream = client.chat.completions.create(**arguments(asked), stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    whole = client.chat.completions.create(**arguments(asked))
    assert "".join(pieces) == whole.choices[0].message.content == "The capital of France is Paris."
    assert whole.choices[0].finish_reason == "stop"


def test_a_fresh_prompt_crosses_in_whole_blocks(client: openai.OpenAI) -> None:
    _, charged, usage = bill(client, Asked("A prompt that nobody has sent before. " + LONG, 4))
    num_blocks = -(-usage.prompt_tokens // BLOCK_TOKENS)
    assert charged["bytes_moved"] == num_blocks * BLOCK_BYTES
    assert charged["prefill_computed_tokens"] == usage.prompt_tokens
    assert charged["decode_computed_tokens"] == 0


def test_a_repeated_prompt_is_found_in_a_cache_moves_fewer_bytes_and_gets_the_same_answer(client: openai.OpenAI) -> None:
    rounds = [bill(client, Asked(LONG, 8)) for _ in range(4)]
    assert len({text for text, _, _ in rounds}) == 1
    assert rounds[0][2].prompt_tokens_details.cached_tokens < BLOCK_TOKENS * 2
    assert max(usage.prompt_tokens_details.cached_tokens for _, _, usage in rounds) >= BLOCK_TOKENS * 2
    assert min(charged["bytes_moved"] for _, charged, _ in rounds[1:]) < rounds[0][1]["bytes_moved"]


def test_many_at_once_equal_each_alone_and_leave_no_block_behind(cluster: Cluster, client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        together = list(pool.map(lambda asked: answer(client, asked), QUESTIONS))
    assert [answer(client, asked) for asked in QUESTIONS] == together
    for ledger in ledgers(cluster):
        assert (ledger.referenced_blocks, ledger.orphaned_blocks, ledger.holdings) == (0, 0, ())
        assert ledger.free_blocks + ledger.cached_blocks == ledger.total_blocks
        assert ledger.landing_free_bytes == ledger.landing_bytes
    evidence = asyncio.run(gather_evidence(cluster))
    assert evidence.objections() == []
    assert evidence.prefill.handoff_bytes == evidence.decode.handoff_bytes
    assert evidence.decode.handoff_bytes % BLOCK_BYTES == 0
