"""SmolLM2, fetched and converted by us, is in float32 token for token what `transformers` makes of it."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from twostep.cli.model_store.catalogue import CATALOGUE, models_folder
from twostep.cli.model_store.pull import pull
from twostep.core.ids import BlockId, RequestId
from twostep.core.request import SamplingParams
from twostep.engine.batch import Batch, Chunk, Draw
from twostep.engine.config import EngineConfig
from twostep.engine.torch_runner import TorchRunner

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NUM_PROMPTS, PROMPT_TOKENS, NEW_TOKENS, BLOCKS_EACH = 20, 64, 64, 4
TOPICS = ["rivers", "bread", "the moon", "tax law", "bees", "jazz", "glass", "chess", "vaccines", "bridges"]


@pytest.fixture(scope="module")
def folder() -> Path:
    return pull(CATALOGUE["smollm2"], models_folder(), lambda _stage, _done, _total: None)


def chunk(number: int, tokens: Sequence[int], start: int, index: int = 0) -> Chunk:
    table = tuple(BlockId(BLOCKS_EACH * number + block) for block in range(BLOCKS_EACH))
    return Chunk(RequestId(str(number)), tuple(tokens), start, table, Draw(SamplingParams(0, temperature=0.0), index))


def drawn(runner: TorchRunner, chunks: Sequence[Chunk]) -> list[int]:
    return [token for token in runner.launch(Batch(tuple(chunks)), lambda _: None)().drawn if isinstance(token, int)]


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Twenty prompts of the same length: the ends of chats about something, and random tokens."""
    random = Random(0)
    chats = [
        f"<|im_start|>system\nYou are a patient teacher who answers in plain words, and gives an example of each thing that "
        f"you say, so that even a child can follow. Do not use words that need explaining.<|im_end|>\n<|im_start|>user\n"
        f"Tell me {number} things about {topic}, and say which of them you would teach first and why. Then ask me a question "
        f"that shows whether I have understood {topic}.<|im_end|>\n<|im_start|>assistant\n"
        for number, topic in enumerate(TOPICS, start=3)
    ]
    texts = [tokenizer.encode(chat).ids[-PROMPT_TOKENS:] for chat in chats]
    noise = [random.choices(range(17, 49152), k=PROMPT_TOKENS) for _ in range(NUM_PROMPTS - len(texts))]
    return texts + noise


def test_greedy_tokens_are_those_of_transformers(folder: Path) -> None:
    runner = TorchRunner(folder, EngineConfig(dtype="float32", kv_bytes=1 << 28, num_threads=1))
    asked = prompts(Tokenizer.from_file(str(folder / "tokenizer.json")))
    assert {len(prompt) for prompt in asked} == {PROMPT_TOKENS}
    answers = [[token] for token in drawn(runner, [chunk(n, prompt, 0) for n, prompt in enumerate(asked)])]
    for step in range(1, NEW_TOKENS):
        decodes = [chunk(n, answer[-1:], PROMPT_TOKENS + step - 1, step) for n, answer in enumerate(answers)]
        for answer, token in zip(answers, drawn(runner, decodes), strict=True):
            answer.append(token)
    # Each answer is greedy if each of its tokens is the arg max after those before it: one pass of the oracle tells.
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    whole = torch.tensor([prompt + answer for prompt, answer in zip(asked, answers, strict=True)])
    with torch.inference_mode():
        expected = [oracle(row[None, :-1], logits_to_keep=NEW_TOKENS).logits.argmax(-1)[0].tolist() for row in whole]
    assert answers == expected


def test_the_chat_template_leads_to_the_capital_of_france(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert prompt == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(tokenizer.decode(prompt)).ids
    runner = TorchRunner(folder, EngineConfig(dtype="bfloat16", kv_bytes=1 << 26, num_threads=1))
    answer = drawn(runner, [chunk(0, prompt, 0)])
    while answer[-1] != tokenizer.eos_token_id and len(answer) < 20:
        answer += drawn(runner, [chunk(0, answer[-1:], len(prompt) + len(answer) - 1, len(answer))])
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
