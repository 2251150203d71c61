"""Runs in vLLM's own environment, with nothing of ours: does what is asked, one line in, the seconds that it took out."""

import itertools
import json
import sys
import time
from collections.abc import Iterable
from typing import Any

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

NAMES = itertools.count()


def main() -> None:
    told = json.loads(sys.argv[1])
    llm = LLM(
        told["model"],
        dtype="bfloat16",
        block_size=32,
        max_model_len=4096,
        max_num_seqs=32,
        max_num_batched_tokens=told["token_budget"],
        enable_chunked_prefill=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
        seed=0,
    )
    print("ready", file=sys.stderr, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(f"answer {json.dumps(answer(llm, asked))}", flush=True)


def answer(llm: LLM, asked: Any) -> Any:
    if "streams" in asked:
        return mixed(llm.llm_engine, asked)
    return decode_step_s(llm.llm_engine, asked) if "decodes" in asked else generate_s(llm, asked)


def generate_s(llm: LLM, asked: Any) -> float:
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    started = time.perf_counter()
    llm.generate(prompts, sampling(asked["num_tokens"]), use_tqdm=False)
    return time.perf_counter() - started


def decode_step_s(engine: Any, asked: Any) -> float:
    """Return the mean of several steps, once each of the prompts has had a token."""
    moments: dict[str, list[float]] = {put(engine, prompt, asked["longest"]): [] for prompt in asked["decodes"]}
    while not all(moments.values()):
        step(engine, moments)
    started = time.perf_counter()
    for _ in range(asked["num_steps"]):
        step(engine, moments)
    took_s = time.perf_counter() - started
    end(engine, moments)
    return took_s / float(asked["num_steps"])


def mixed(engine: Any, asked: Any) -> dict[str, list[float]]:
    """Let streams run, and put prompts to them one after the other, each after some steps without one."""
    moments: dict[str, list[float]] = {put(engine, prompt, asked["longest"]): [] for prompt in asked["streams"]}
    streams = list(moments)
    while not all(moments.values()):
        step(engine, moments)
    started, ttft_s = time.perf_counter(), []
    for prompt in asked["prompts"]:
        for _ in range(asked["calm_steps"]):
            step(engine, moments)
        sent, name = time.perf_counter(), put(engine, prompt, 1)
        moments[name] = []
        while not moments[name]:
            step(engine, moments)
        ttft_s.append(moments[name][0] - sent)
    end(engine, streams)
    itl_s = [after - before for one in streams for before, after in itertools.pairwise(moments[one]) if after > started]
    return {"itl_s": itl_s, "ttft_s": ttft_s}


def put(engine: Any, prompt: list[int], num_tokens: int) -> str:
    name = str(next(NAMES))
    engine.add_request(name, {"prompt_token_ids": prompt}, sampling(num_tokens))
    return name


def end(engine: Any, names: Iterable[str]) -> None:
    engine.abort_request(list(names))
    while engine.has_unfinished_requests():
        engine.step()


def step(engine: Any, moments: dict[str, list[float]]) -> None:
    outputs = engine.step()
    now = time.perf_counter()
    for output in outputs:
        if output.outputs[0].token_ids:
            moments[output.request_id].append(now)


def sampling(num_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
    )


if __name__ == "__main__":
    main()
