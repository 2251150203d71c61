"""The kernels that work row by row equal their twins: normalisations, gates, and turning and storing."""

import pytest
import torch
from torch import Tensor

from twostep.engine.kernels.gpu.kernel_set import TritonKernels
from twostep.engine.kernels.kernel_set import HeadNorms
from twostep.engine.kernels.twins import TorchKernels
from twostep.engine.layers.rope import Rope, RopeConfig
from twostep.tests.engine.gpu.scenes import TOLERANCE

TYPES = [torch.float32, torch.bfloat16]
OURS, TWIN = TritonKernels(), TorchKernels()


def noise(*shape: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def assert_alike(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, **TOLERANCE[found.dtype])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("from_one", [False, True])
@pytest.mark.parametrize("dim", [64, 100, 1536])
def test_rows_are_normalised_as_by_their_twin(dim: int, from_one: bool, dtype: torch.dtype, device: torch.device) -> None:
    x, residual, weight = (noise(3, dim, dtype=dtype, device=device, seed=seed) for seed in range(3))
    how = {"eps": 1e-6, "from_one": from_one}
    results = []
    for kernels in (OURS, TWIN):
        plain, added, after = torch.empty_like(x), residual.clone(), residual.clone()
        kernels.rms_norm(x, weight[0], plain, **how)
        in_place = x.clone()
        kernels.add_rms_norm(in_place, added, weight[0], in_place, **how)
        kernels.rms_norm_add(x, after, weight[0], **how)
        results.append(torch.stack((plain, in_place, added, after)))
    assert_alike(*results)


def test_the_sum_that_is_normalised_is_the_sum_that_is_kept(device: torch.device) -> None:
    x, residual = (noise(2, 64, dtype=torch.bfloat16, device=device, seed=seed) for seed in range(2))
    total, weight = x + residual, torch.ones(64, dtype=torch.bfloat16, device=device)
    OURS.add_rms_norm(x, residual, weight, x, eps=1e-6, from_one=False)
    assert torch.equal(residual, total)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [64, 100, 301])
def test_gates_multiply_as_their_twins(dim: int, dtype: torch.dtype, device: torch.device) -> None:
    gate_and_up = 3 * noise(3, 2 * dim, dtype=dtype, device=device)
    results = []
    for kernels in (OURS, TWIN):
        silu, gelu = (gate_and_up.new_empty((3, dim)) for _ in range(2))
        kernels.silu_and_multiply(gate_and_up, silu)
        kernels.gelu_and_multiply(gate_and_up, gelu)
        results.append(torch.stack((silu, gelu)))
    assert_alike(*results)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "dim", "turned", "block_tokens"),
    [
        (4, 2, 64, 64, 16),
        (9, 3, 80, 80, 32),
        (8, 1, 96, 72, 64),
        (3, 3, 128, 128, 32),
        (2, 1, 256, 256, 16),
        (4, 2, 80, 32, 32),
    ],
)
@pytest.mark.parametrize("norm", [None, False, True])
def test_queries_are_turned_in_place_and_keys_and_values_stored(
    num_heads: int,
    num_kv_heads: int,
    dim: int,
    turned: int,
    block_tokens: int,
    norm: bool | None,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    given = noise(3, num_heads + 2 * num_kv_heads, dim, dtype=dtype, device=device)
    positions = torch.tensor([0, 5, 1000], device=device)
    cos, sin = (angles[:, 0] for angles in Rope(RopeConfig(turned, 10000.0)).angles(positions, torch.float32))
    slots = torch.tensor([3 * block_tokens + 7, -1, block_tokens - 1], device=device)
    query, key = (noise(dim, dtype=dtype, device=device, seed=seed) for seed in (1, 2))
    norms = None if norm is None else HeadNorms(query, key, 1e-6, norm)
    results = []
    for kernels in (OURS, TWIN):
        qkv, pool = given.clone(), given.new_full((4, num_kv_heads, block_tokens, 2, dim), 9.0)
        kernels.rotate_and_store(qkv, cos, sin, slots, pool, norms)
        results.append((qkv[:, :num_heads], pool))
        assert torch.equal(qkv[:, num_heads:], given[:, num_heads:])
        assert int((pool != 9.0).any(-1).sum()) == 2 * 2 * num_kv_heads
    for found, expected in zip(*results, strict=True):
        assert_alike(found, expected)
