"""The names of a prompt's blocks are those that nodes give them, however much of the prompt was seen before."""

import random

import pytest

from twostep.core.block_hash import hash_chain, prefix_root
from twostep.router.placement.prompt_hashes import RUN_TOKENS, chain_of

ROOT = prefix_root("m", "w")


@pytest.mark.parametrize("num_tokens", [0, 31, 32, RUN_TOKENS - 1, RUN_TOKENS, RUN_TOKENS + 33, 3 * RUN_TOKENS])
def test_a_chain_of_remembered_runs_is_the_chain_of_the_whole(num_tokens: int) -> None:
    tokens = random.Random(num_tokens).choices(range(1 << 17), k=num_tokens)
    assert chain_of(ROOT, tokens) == hash_chain(ROOT, tokens)
    assert chain_of(ROOT, tokens) == hash_chain(ROOT, tokens)


def test_the_same_tokens_after_others_are_other_blocks() -> None:
    run = [7] * RUN_TOKENS
    assert chain_of(ROOT, run + run) == hash_chain(ROOT, run + run)
    assert chain_of(prefix_root("m", "other"), run) == hash_chain(prefix_root("m", "other"), run)
