"""Runs in vLLM's own environment, with nothing of ours: generates what is asked, one line in, the seconds out."""

import json
import sys
import time

from vllm import LLM, SamplingParams


def main() -> None:
    told = json.loads(sys.argv[1])
    llm = LLM(
        told["model"],
        dtype="bfloat16",
        block_size=32,
        max_model_len=4096,
        max_num_seqs=32,
        enable_prefix_caching=False,
        disable_log_stats=True,
        seed=0,
    )
    print("ready", file=sys.stderr, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        sampling = SamplingParams(temperature=0.0, max_tokens=asked["num_tokens"], ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
        started = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        print(f"took {time.perf_counter() - started}", flush=True)


if __name__ == "__main__":
    main()
