"""The fake model answers by what lies in the blocks: the same whatever the path there, another when anything is wrong."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostep.core.errors import ConfigError
from twostep.core.ids import BlockId, RequestId
from twostep.core.kv_layout import KVLayout
from twostep.core.request import SamplingParams
from twostep.engine.batch import Batch, Chunk, Draw
from twostep.engine.config import EngineConfig
from twostep.engine.fake_runner import FakeModel, FakeRunner

MODEL = FakeModel(vocab_size=1 << 30, num_layers=3, num_kv_heads=2, head_dim=4)
GREEDY = SamplingParams(seed=1, temperature=0.0)
FIRST = Draw(GREEDY, index=0)
TOKENS = tuple(range(500, 600))
BLOCKS = (5, 2, 7, 4)


def build(block_tokens: int = 32, model: FakeModel = MODEL, **config: Any) -> FakeRunner:
    layout = KVLayout(model.num_layers, model.num_kv_heads, model.head_dim, block_tokens, "bfloat16")
    return FakeRunner(model, EngineConfig(block_tokens=block_tokens, kv_bytes=8 * layout.block_bytes, **config))


def chunk(tokens: Sequence[int], start: int = 0, *, blocks: Sequence[int] = BLOCKS, draw: Draw | None = FIRST) -> Chunk:
    return Chunk(RequestId("r"), tuple(tokens), start, tuple(BlockId(block) for block in blocks), draw)


def answer(runner: FakeRunner, *chunks: Chunk) -> Any:
    return runner.launch(Batch(chunks), lambda _: None)().drawn[-1]


def decode_after(spoil: Callable[[FakeRunner], None], *, blocks: Sequence[int] = BLOCKS) -> Any:
    """Prefill all but the last token, spoil something, and return what is drawn after the last."""
    runner = build()
    answer(runner, chunk(TOKENS[:-1]))
    spoil(runner)
    return answer(runner, chunk(TOKENS[-1:], len(TOKENS) - 1, blocks=blocks))


def nothing(runner: FakeRunner) -> None:
    del runner


@given(st.lists(st.integers(1, 99), unique=True), st.sampled_from([32, 64]), st.integers(1, 3))
def test_neither_chunking_nor_block_size_nor_layer_groups_change_a_token(
    cuts: list[int], block_tokens: int, layer_group: int
) -> None:
    runner = build(block_tokens, layer_group=layer_group)
    edges = [0, *sorted(cuts), 100]
    for start, end in pairwise(edges):
        token = answer(runner, chunk(TOKENS[start:end], start))
    assert token == answer(build(), chunk(TOKENS))


def test_batch_mates_do_not_change_a_token() -> None:
    mate = chunk(range(20), blocks=(0, 1))
    assert answer(build(), mate, chunk(TOKENS)) == answer(build(), chunk(TOKENS))


def test_prefill_and_decode_agree() -> None:
    assert decode_after(nothing) == answer(build(), chunk(TOKENS))


def test_any_token_changes_the_answer() -> None:
    answers = {answer(build(), chunk((*TOKENS[:i], 7, *TOKENS[i + 1 :]))) for i in range(0, 100, 9)}
    assert len(answers | {answer(build(), chunk(TOKENS))}) == 13


@pytest.mark.parametrize("layer", range(3))
@pytest.mark.parametrize("place", [(5, 0, 0, 0), (2, 1, 31, 3), (4, 1, 2, 2)])
def test_a_flipped_bit_changes_the_answer(layer: int, place: tuple[int, int, int, int]) -> None:
    def flip(runner: FakeRunner) -> None:
        runner.kv.words[(layer, *place)] ^= np.uint32(1 << 9)

    assert decode_after(flip) != decode_after(nothing)


def test_a_word_beyond_the_sequence_changes_nothing() -> None:
    def write_beyond(runner: FakeRunner) -> None:
        runner.kv.words[:, 4, :, 4:] = 1
        runner.kv.words[:, 0] = 1

    assert decode_after(write_beyond) == decode_after(nothing)


def test_two_swapped_blocks_change_the_answer() -> None:
    assert decode_after(nothing, blocks=(2, 5, 7, 4)) != decode_after(nothing)


def test_blocks_swapped_in_one_layer_only_change_the_answer() -> None:
    def swap(runner: FakeRunner) -> None:
        runner.kv.words[1, [5, 2]] = runner.kv.words[1, [2, 5]]

    assert decode_after(swap) != decode_after(nothing)


def test_swapped_heads_change_the_answer() -> None:
    def swap(runner: FakeRunner) -> None:
        runner.kv.words[0, 2, [0, 1]] = runner.kv.words[0, 2, [1, 0]]

    assert decode_after(swap) != decode_after(nothing)


def test_a_stale_block_changes_the_answer() -> None:
    """The block holds the right tokens at the right positions, computed after another beginning."""

    def leave_stale(runner: FakeRunner) -> None:
        good = runner.kv.words[:, [5, 7, 4]].copy()
        answer(runner, chunk((9, *TOKENS[1:-1])))
        runner.kv.words[:, [5, 7, 4]] = good

    assert decode_after(leave_stale) != decode_after(nothing)


def test_a_zeroed_block_changes_the_answer() -> None:
    def zero(runner: FakeRunner) -> None:
        runner.kv.words[2, 7] = 0

    assert decode_after(zero) != decode_after(nothing)


def test_a_wrong_byte_spoils_what_is_computed_after_it() -> None:
    runner = build()
    answer(runner, chunk(TOKENS[:50]))
    runner.kv.words[0, 5, 0, 0, 0] ^= 1
    answer(runner, chunk(TOKENS[50:], 50))
    runner.kv.words[0, 5, 0, 0, 0] ^= 1
    sound = build()
    answer(sound, chunk(TOKENS))
    np.testing.assert_array_equal(runner.kv.words[0], sound.kv.words[0])
    assert (runner.kv.words[1:] != sound.kv.words[1:]).any()


def test_greedy_ignores_the_seed_and_sampling_does_not() -> None:
    def draw(temperature: float, seed: int, index: int) -> Any:
        return answer(build(), chunk(TOKENS, draw=Draw(SamplingParams(seed, temperature), index)))

    assert draw(0.0, 1, 0) == draw(0.0, 2, 5)
    assert len({draw(1.0, 1, 0), draw(1.0, 2, 0), draw(1.0, 1, 1), draw(0.0, 1, 0)}) == 4
    assert draw(1.0, 1, 0) == draw(1.0, 1, 0)


def test_draws_stay_below_the_vocabulary_and_only_where_asked() -> None:
    runner = build(model=replace(MODEL, vocab_size=3))
    assert {answer(runner, chunk([i])) for i in range(40)} == {0, 1, 2}
    assert answer(runner, chunk([1], draw=None)) is None


def test_the_answer_ends_where_the_model_is_told_to_end_it() -> None:
    runner = build(model=replace(MODEL, eos_id=2, eos_after=3))
    tokens = [answer(runner, chunk(TOKENS, draw=Draw(GREEDY, index))) for index in range(5)]
    assert [token == 2 for token in tokens] == [False, False, False, True, True]


def test_layers_are_announced_group_by_group_once_they_are_written() -> None:
    runner, announced = build(layer_group=2), []

    def look(layers: range) -> None:
        announced.append((layers, bool(runner.kv.words[layers.stop - 1].any()), bool(runner.kv.words[layers.stop :].any())))

    runner.launch(Batch((chunk(TOKENS),)), look)()
    assert announced == [(range(2), True, False), (range(2, 3), True, False)]


def test_what_changes_the_answers_changes_the_fingerprint_and_speed_does_not() -> None:
    def weights(**changes: Any) -> str:
        return build(model=replace(MODEL, **changes)).fingerprint.weights

    assert weights(step_s=1.0, token_s=1.0, depth=2) == weights()
    assert len({weights(), weights(vocab_size=9), weights(eos_after=1), weights(head_dim=8)}) == 4


def test_memory_for_less_than_one_block_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"engine\.kv_bytes = 1000 is less than one block, which takes 3072 bytes"):
        FakeRunner(MODEL, EngineConfig(kv_bytes=1000))


def test_more_tokens_than_the_model_takes_are_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"engine\.max_model_tokens = 9000: this model takes at most 8192 tokens"):
        build(max_model_tokens=9000)
