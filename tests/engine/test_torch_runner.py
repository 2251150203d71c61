"""The torch runner against `transformers`: the same logits in every variant, however a sequence is cut, in any company."""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from twostep.core.errors import ConfigError, RequestFault
from twostep.core.ids import BlockId, RequestId
from twostep.core.request import SamplingParams
from twostep.engine import torch_forward
from twostep.engine.batch import Batch, Chunk, Draw
from twostep.engine.config import EngineConfig
from twostep.engine.torch_runner import TorchRunner, draw_tokens, usual_threads
from twostep.tests.engine.tiny_llama import VARIANTS, write_tiny_llama

pytestmark = pytest.mark.model

GREEDY = Draw(SamplingParams(seed=0, temperature=0.0), index=0)
TOKENS: list[int] = torch.randint(131, (600,), generator=torch.Generator().manual_seed(1)).tolist()


def runner_of(folder: Path, **changes: Any) -> TorchRunner:
    config = {"dtype": "float32", "kv_bytes": 1 << 22, "layer_group": 2, "num_threads": 1} | changes
    return TorchRunner(folder, EngineConfig(**config))


def chunk(tokens: Sequence[int], start: int, *, first_block: int = 0, name: str = "r", draw: Draw | None = GREEDY) -> Chunk:
    """A chunk of a sequence that lies in every other block from `first_block` on, in falling order."""
    num_blocks = -(-(start + len(tokens)) // 32)
    table = tuple(BlockId(first_block + 40 - 2 * block) for block in range(num_blocks))
    return Chunk(RequestId(name), tuple(tokens), start, table, draw)


def logits(runner: TorchRunner, *chunks: Chunk) -> Tensor:
    return runner.logits(Batch(chunks), lambda _: None)


def prefill(runner: TorchRunner, tokens: Sequence[int], cuts: Sequence[int] = (), **where: Any) -> Tensor:
    """Compute a sequence in chunks that end at `cuts` and at its end; return the last logits [vocab]."""
    for start, end in zip((0, *cuts), (*cuts, len(tokens)), strict=True):
        last = logits(runner, chunk(tokens[start:end], start, **where))
    return last[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_chunked_prefill_and_decode_give_the_logits_of_transformers(variant: str, kernels: str, tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path / "m", **VARIANTS[variant])
    runner, expected = runner_of(tiny.folder, kernels=kernels), tiny.logits(TOKENS[:110])
    for end in (1, 31, 32, 33, 100):
        assert_close(prefill(runner, TOKENS[:end]), expected[end - 1])
        assert_close(prefill(runner, TOKENS[:end], cuts=range(7, end, 19)), expected[end - 1])
    for position in range(100, 110):
        assert_close(logits(runner, chunk(TOKENS[position : position + 1], position))[0], expected[position])


def test_bfloat16_is_as_near_to_float32_as_transformers_bfloat16(kernels: str, tmp_path: Path) -> None:
    exact = write_tiny_llama(tmp_path / "m")
    narrow = write_tiny_llama(tmp_path / "n", torch.bfloat16)
    ours = prefill(runner_of(tmp_path / "n", dtype="bfloat16", kernels=kernels), TOKENS[:90], cuts=(50,))
    right = exact.logits(TOKENS[:90])[-1]
    theirs = narrow.logits(TOKENS[:90])[-1]
    assert (ours - right).norm() <= 1.2 * (theirs - right).norm()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_neither_chunks_nor_company_change_a_bit_of_the_logits(dtype: str, kernels: str, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m", hidden_size=64, num_attention_heads=4).folder
    runner = runner_of(folder, dtype=dtype, kernels=kernels)
    alone = prefill(runner, TOKENS[:550])
    assert torch.equal(prefill(runner, TOKENS[:550], cuts=(1, 3, 40, 41, 200, 512, 549)), alone)
    mates = [chunk(TOKENS[: 5 + at], 0, first_block=1 + 2 * at, name=f"mate{at}") for at in range(5)]
    prefill(runner, TOKENS[:549])
    assert torch.equal(logits(runner, *mates, chunk(TOKENS[549:550], 549))[-1], alone)


def test_layers_are_announced_in_groups_and_their_kv_is_then_in_the_pool(tmp_path: Path) -> None:
    runner = runner_of(write_tiny_llama(tmp_path / "m").folder)
    seen: list[tuple[range, list[bool]]] = []

    def look(layers: range) -> None:
        seen.append((layers, [bool(runner.kv.words[layer, 40].any()) for layer in range(3)]))

    runner.launch(Batch((chunk(TOKENS[:10], 0),)), look)()
    assert seen == [(range(2), [True, True, False]), (range(2, 3), [True, True, True])]


def test_a_chunk_that_asks_for_no_draw_brings_none(tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path / "m")
    runner = runner_of(tiny.folder)
    silent = chunk(TOKENS[:40], 0, name="silent", draw=None)
    drawing = chunk(TOKENS[:20], 0, first_block=41, name="drawing")
    expected = int(tiny.logits(TOKENS[:20])[-1].argmax())
    assert runner.launch(Batch((silent, drawing)), lambda _: None)().drawn == [None, expected]
    assert runner.launch(Batch((silent,)), lambda _: None)().drawn == [None]


def test_what_an_earlier_owner_left_in_a_block_changes_nothing(kernels: str, tmp_path: Path) -> None:
    runner = runner_of(write_tiny_llama(tmp_path / "m").folder, kernels=kernels)
    clean = prefill(runner, TOKENS[:40])
    runner.kv.words.fill(np.float32("nan").view(np.uint32))
    assert torch.equal(prefill(runner, TOKENS[:40]), clean)
    assert not runner.kv.words[:, 38, :, 8:].any()


def test_a_row_of_nan_is_the_fault_of_its_own_request_alone() -> None:
    rows = torch.zeros(3, 10)
    rows[0, 4] = rows[2, 5] = 1.0
    rows[1, 7] = torch.nan
    first, faulty, last = draw_tokens(rows, [GREEDY] * 3)
    assert (first, last) == (4, 5)
    assert isinstance(faulty, RequestFault)


def test_a_fingerprint_names_what_two_nodes_must_agree_on(tmp_path: Path) -> None:
    one = runner_of(write_tiny_llama(tmp_path / "a" / "m").folder).fingerprint
    same = runner_of(write_tiny_llama(tmp_path / "b" / "m").folder, block_tokens=64, layer_group=1).fingerprint
    other_rope = runner_of(write_tiny_llama(tmp_path / "c" / "m", **VARIANTS["llama3 rope"]).folder).fingerprint
    other_weights = runner_of(write_tiny_llama(tmp_path / "d" / "m", **VARIANTS["tied"]).folder).fingerprint
    assert one == same
    assert one.weights == other_rope.weights != other_weights.weights
    assert one.rope != other_rope.rope


@pytest.mark.parametrize(
    ("told", "expected"),
    [("3", 3), ("2,1", 2), ("", None), ("0", None), ("many", None)],
    ids=["number", "levels", "empty", "none", "word"],
)
def test_threads_are_as_many_as_the_environment_shares_out(
    told: str, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert usual_threads() == (expected or len(os.sched_getaffinity(0)))


def test_the_pool_bounds_the_longest_sequence(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m").folder
    assert runner_of(folder).geometry.max_model_tokens == 1024
    assert runner_of(folder, max_model_tokens=100).geometry.max_model_tokens == 100
    small = runner_of(folder, kv_bytes=5 * 3 * 32 * 2 * 2 * 8 * 4)
    assert (small.kv.num_blocks, small.geometry.max_model_tokens) == (5, 160)


def test_the_log_says_where_the_memory_goes_and_what_computes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    runner_of(write_tiny_llama(tmp_path / "m").folder, kernels="torch")
    memory, kernels = [one.getMessage() for one in caplog.records if one.name == "twostep.engine.torch_runner"]
    sizes = r"memory: weights 0 MiB, workspace \d+ MiB, KV 3 MiB, left \d+ MiB of \d+ MiB; 341 KV blocks of 32 tokens"
    assert re.fullmatch(sizes, memory)
    assert kernels == "computing with torch"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_bytes": 100}, "engine.kv_bytes = 100 is less than one block, which takes 12288 bytes"),
        ({"kv_bytes": 1 << 60}, r"engine.kv_bytes \(1099511627775 MiB\) does not fit: .* lower it to"),
        ({"max_model_tokens": 2000}, "engine.max_model_tokens = 2000: this model takes at most 1024 tokens"),
    ],
)
def test_a_runner_that_cannot_be_as_told_says_why(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m").folder
    with pytest.raises(ConfigError, match=reason):
        runner_of(folder, **changes)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_layers_are_announced_once_the_device_has_written_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str | range] = []
    monkeypatch.setattr(torch_forward, "finish", lambda device: done.append(device.type))
    runner = runner_of(write_tiny_llama(tmp_path / "m").folder, kernels="torch")
    runner.logits(Batch((chunk(TOKENS[:3], 0),)), done.append)
    assert done == ["cpu", range(2), "cpu", range(2, 3)]
