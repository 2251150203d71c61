"""Each part of the CPU kernels against its twin in the reference, and against itself in other company, bit for bit."""

import ctypes
import itertools
import os
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_int64
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from twostep.core.cache_folder import cache_folder
from twostep.engine.kernels.cpu.compiler import compiled_kernels
from twostep.engine.kernels.cpu.instruction_set import AMX, AVX512, AVX512_BF16, INSTRUCTION_SETS, available
from twostep.engine.kernels.reference import (
    Score,
    attend_chunk,
    gelu_and_multiply,
    rms_norm,
    rotate,
    silu_and_multiply,
    soft_cap,
)
from twostep.engine.weights import DTYPES

pytestmark = pytest.mark.model

GENERATOR = torch.Generator().manual_seed(0)
SOURCE = Path(__file__).parent / "kernel_parts.cpp"


class Parts:
    """The compiled parts for one set of instructions and one type."""

    def __init__(self, library: Path, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._library = ctypes.CDLL(str(library))

    def linear(self, x: Tensor, weights: Tensor, bias: Tensor | None = None, *, num_threads: int = 1) -> Tensor:
        out = torch.full((len(x), len(weights)), torch.nan)
        sizes = c_int64(len(x)), c_int64(x.shape[1]), c_int64(len(weights)), c_int64(num_threads)
        self._library.part_linear(at(x), sizes[0], sizes[1], at(weights), at(bias), sizes[2], sizes[3], at(out))
        return out

    def cores(self, num_threads: int) -> list[int]:
        """Return the core that each member of a team keeps to, -1 for one that is free to move."""
        out = torch.zeros(num_threads, dtype=torch.int64)
        self._library.part_cores(c_int64(num_threads), at(out))
        cores: list[int] = out.tolist()
        return cores

    def normalise(self, x: Tensor, weights: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(x, dtype=self.dtype)
        self._library.part_normalise(at(x), c_int64(len(x)), at(weights), c_float(eps), at(out))
        return out

    def rotate(self, head: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        out = head.clone()
        self._library.part_rotate(at(out), c_int64(len(cos)), at(cos), at(sin))
        return out

    def activate(self, activation: int, x: Tensor) -> Tensor:
        out = x.clone()
        self._library.part_activate(c_int32(activation), at(out), c_int64(len(out)))
        return out

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        out = x.clone()
        self._library.part_soft_cap(c_float(cap), at(out), c_int64(len(out)))
        return out

    def attend(self, query: Tensor, pool: Tensor, table: Sequence[int], start: int, score: Score, window: int | None) -> Tensor:
        """`query` [token, head, dim] from position `start` on; `pool` [block, kv_head, token, k|v, dim]."""
        out, blocks = torch.empty_like(query), torch.tensor(table, dtype=torch.int32)
        scale = query.shape[-1] ** -0.5 if score.scale is None else score.scale
        pool_sizes = [c_int64(size) for size in (pool.shape[1], pool.shape[2], pool.shape[4])]
        sizes = [c_int64(size) for size in (start, query.shape[0], query.shape[1])]
        rest = c_float(scale), c_float(score.cap or 0.0), c_int64(window or 0)
        self._library.part_attend(at(pool), *pool_sizes, at(blocks), *sizes, *rest, at(query), at(out))
        return out


def at(numbers: Tensor | None) -> ctypes.c_void_p:
    assert numbers is None or numbers.is_contiguous()
    return ctypes.c_void_p(None if numbers is None else numbers.data_ptr())


@pytest.fixture(
    params=[(each, dtype) for each in INSTRUCTION_SETS for dtype in DTYPES], ids=lambda param: f"{param[0].name}-{param[1]}"
)
def parts(request: pytest.FixtureRequest) -> Parts:
    instructions, dtype = request.param
    if instructions not in available():
        pytest.skip(f"this processor has no {instructions.name}")
    if instructions in (AMX, AVX512) and dtype == "float32" and AVX512_BF16 in available():
        pytest.skip(f"{AVX512_BF16.name} is the same code for float32, and takes seconds to compile")
    return Parts(compiled_kernels(instructions, dtype, cache_folder() / "kernels", SOURCE), DTYPES[dtype])


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


@pytest.mark.parametrize(("num_in", "num_out"), [(1, 1), (7, 5), (64, 48), (130, 97), (576, 131)])
def test_a_product_is_that_of_the_matrices(num_in: int, num_out: int, parts: Parts) -> None:
    x, weights, bias = random(11, num_in).to(parts.dtype), random(num_out, num_in).to(parts.dtype), random(num_out)
    expected = functional.linear(x.double(), weights.double(), bias.double())
    torch.testing.assert_close(parts.linear(x, weights, bias).double(), expected, rtol=1e-5, atol=2e-5 * num_in**0.5)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_row_comes_to_the_same_bits_in_any_company(num_threads: int, parts: Parts) -> None:
    x, weights = random(600, 1030).to(parts.dtype), random(77, 1030).to(parts.dtype)
    alone = torch.cat([parts.linear(row[None], weights) for row in x[::40]])
    for end in (1, 2, 7, 8, 9, 40, 150, 600):
        together = parts.linear(x[:end].contiguous(), weights, num_threads=num_threads)
        assert torch.equal(together[::40], alone[: -(-end // 40)])


def test_members_of_a_team_that_has_all_cores_keep_to_one_each(parts: Parts) -> None:
    cores = os.sched_getaffinity(0)
    caller, *others = parts.cores(len(cores))
    assert caller == (-1 if others else min(cores))
    assert len({*others}) == len(others) == len(cores) - 1
    assert cores.issuperset(others)


def test_a_smaller_team_goes_where_the_system_puts_it(parts: Parts) -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("there is one core")
    assert parts.cores(len(cores) - 1) == [-1] * (len(cores) - 1)


@pytest.mark.parametrize("size", [1, 6, 24, 64, 99])
def test_a_norm_is_that_of_the_reference(size: int, parts: Parts) -> None:
    x, weights = random(size) * 3, random(size)
    expected = rms_norm(x, weights, 1e-5).to(parts.dtype)
    torch.testing.assert_close(
        parts.normalise(x, weights, 1e-5), expected, rtol=1e-2 if parts.dtype.itemsize == 2 else 1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("size", "turned"), [(2, 2), (12, 12), (64, 64), (64, 48)])
def test_a_rotation_is_that_of_the_reference(size: int, turned: int, parts: Parts) -> None:
    head, angles = random(size), random(turned // 2)
    twice = angles.repeat(2)
    expected = rotate(head[None, None], twice.cos()[None, None], twice.sin()[None, None])[0, 0]
    torch.testing.assert_close(parts.rotate(head, angles.cos(), angles.sin()), expected)


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0, 1000.0])
def test_activations_and_caps_are_those_of_the_reference(spread: float, parts: Parts) -> None:
    gate = random(160) * spread
    beside_one = torch.cat((gate, torch.ones_like(gate)))
    torch.testing.assert_close(parts.activate(0, gate), silu_and_multiply(beside_one), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts.activate(1, gate), gelu_and_multiply(beside_one), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts.soft_cap(gate, 5.0), soft_cap(gate, 5.0), rtol=1e-6, atol=1e-6)


def test_what_is_no_number_stays_none(parts: Parts) -> None:
    x = torch.full((16,), torch.nan)
    for found in (parts.activate(0, x), parts.activate(1, x), parts.soft_cap(x, 5.0), parts.normalise(x, x, 1e-5)):
        assert found.isnan().all()


SHAPES = [
    (1, 1, 64),
    (3, 1, 64),
    (6, 2, 64),
    (8, 1, 128),
    (9, 3, 64),
    (4, 4, 32),
    (4, 2, 8),
    (6, 2, 24),
    (2, 1, 96),
    (10, 1, 64),
]
"""Heads, heads of keys and values, dimensions: some stream, some do not."""
SCORES = {
    "plain": (Score(), None),
    "window": (Score(), 37),
    "wide window": (Score(), 200),
    "scale and cap": (Score(scale=0.3, cap=2.0), None),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", SCORES)
def test_attention_is_that_of_the_reference_and_cuts_change_no_bit(
    shape: tuple[int, int, int], kind: str, parts: Parts
) -> None:
    (num_heads, num_kv_heads, dim), (score, window) = shape, SCORES[kind]
    num_tokens, size = 301, 32
    table = torch.randperm(12, generator=GENERATOR)[:10].tolist()
    pool = random(12, num_kv_heads, size, 2, dim).to(parts.dtype)
    # What lies behind the last token must have no part in anything.
    pool[table[-1], :, num_tokens % size :] = torch.nan
    query = random(num_tokens, num_heads, dim).to(parts.dtype)
    whole = parts.attend(query, pool, table, 0, score, window)
    assert_close(whole, expected_attention(query, pool, table, score, window))
    for cuts in ((0, 1, 2, 150, 300, 301), (0, 128, 129, 256, 301), (0, 17, 34, 51, 301)):
        pieces = [
            parts.attend(query[start:end].contiguous(), pool, table, start, score, window)
            for start, end in itertools.pairwise(cuts)
        ]
        assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("block_tokens", [32, 64, 96])
def test_the_size_of_blocks_changes_no_bit_of_attention(block_tokens: int, parts: Parts) -> None:
    flat = random(2, 192, 2, 64).to(parts.dtype)
    query = random(1, 6, 64).to(parts.dtype)
    found = {}
    for size in (32, block_tokens):
        pool = flat.unflatten(1, (192 // size, size)).transpose(0, 1).contiguous()
        found[size] = parts.attend(query, pool, range(len(pool)), 180, Score(), None)
    assert torch.equal(found[32], found[block_tokens])


def expected_attention(query: Tensor, pool: Tensor, table: Sequence[int], score: Score, window: int | None) -> Tensor:
    num_kv_heads, positions = pool.shape[1], torch.arange(len(query))
    head_blocks = torch.tensor([block * num_kv_heads + head for head in range(num_kv_heads) for block in table])
    keys = torch.arange(len(table) * pool.shape[2])
    mask = keys <= positions[:, None]
    if window:
        mask &= keys > positions[:, None] - window
    return attend_chunk(query.float(), pool.float().nan_to_num(), head_blocks, mask, score)


def assert_close(found: Tensor, expected: Tensor) -> None:
    tolerance = 2e-2 if found.dtype is torch.bfloat16 else 2e-5
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)
