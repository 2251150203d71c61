"""The kernels draw the very tokens that `engine.sampler` draws from the same logits."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from twostep.core.request import SamplingParams
from twostep.engine.batch import Draw
from twostep.engine.kernels.draw_rows import draw_rows
from twostep.engine.kernels.gpu.kernel_set import TritonKernels
from twostep.engine.kernels.kernel_set import KernelSet
from twostep.engine.kernels.twins import TorchKernels
from twostep.engine.sampler import sample

FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"top_k": 20},
    {"top_k": 299},
    {"top_k": 300},
    {"top_p": 0.0},
    {"top_p": 0.3},
    {"top_p": 0.95},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.8},
    {"top_k": 150, "top_p": 0.99, "min_p": 0.01},
]


def draw(index: int = 0, *, seed: int = 1, choice: int = 0, temperature: float = 1.0, **filters: Any) -> Draw:
    return Draw(SamplingParams(seed, temperature, **filters), index, choice)


def drawn(kernels: KernelSet, logits: Tensor, draws: list[Draw | None], device: torch.device) -> list[int]:
    tokens = torch.empty(len(draws), dtype=torch.int64, device=device)
    scratch = kernels.sample_scratch(len(draws) + 1, logits.shape[1], device)
    kernels.sample(logits.to(device), draw_rows(draws).to(device), tokens, scratch)
    return tokens.tolist()


def noise(num_rows: int, vocab_size: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kernels", [TritonKernels(), TorchKernels()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_are_those_of_the_sampler_under_every_filter(
    kernels: KernelSet, dtype: torch.dtype, device: torch.device
) -> None:
    draws: list[Draw | None] = [draw(at, seed=7, temperature=0.5 + at % 3, **how) for at, how in enumerate(FILTERS)]
    logits = noise(len(draws), 300).to(dtype)
    assert drawn(kernels, logits, draws, device) == sample(logits.float(), draws).tolist()


@settings(max_examples=15)
@given(
    seed=st.integers(0, (1 << 64) - 1),
    index=st.integers(0, 1 << 20),
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 130),
    top_p=st.floats(0, 1),
    min_p=st.sampled_from([0.0, 0.01, 0.2]),
)
def test_tokens_are_those_of_the_sampler_whatever_is_asked(
    device: torch.device, seed: int, index: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    draws: list[Draw | None] = [draw(index, seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)]
    logits = noise(1, 128, seed=index)
    assert drawn(TritonKernels(), logits, draws, device) == sample(logits, draws).tolist()


@pytest.mark.parametrize("vocab_size", [1, 63, 64, 65, 1000])
def test_greedy_rows_and_padding_take_the_first_of_the_largest_logits(vocab_size: int, device: torch.device) -> None:
    logits = noise(2, vocab_size).round()
    expected = [row.tolist().index(row.max()) for row in logits]
    assert drawn(TritonKernels(), logits, [draw(temperature=0.0), None], device) == expected


@pytest.mark.parametrize("top_k", [2, 3, 4])
def test_tokens_with_equal_logits_are_allowed_or_not_together(top_k: int, device: torch.device) -> None:
    logits = torch.tensor([0.0, 3.0, 1.0, 3.0, 1.0, 1.0, -2.0])
    draws: list[Draw | None] = [draw(index, top_k=top_k, temperature=9.0) for index in range(24)]
    rows = logits.expand(len(draws), -1).contiguous()
    found = drawn(TritonKernels(), rows, draws, device)
    assert found == sample(rows, draws).tolist()
    assert set(found) == ({1, 3} if top_k == 2 else {1, 2, 3, 4, 5})


@pytest.mark.filterwarnings("ignore:overflow encountered in divide:RuntimeWarning")
@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-40])
def test_a_temperature_near_zero_draws_the_largest_logit(temperature: float, device: torch.device) -> None:
    rows = torch.tensor([[90.0, 91.0, -80.0]]).expand(3, -1).contiguous()
    draws: list[Draw | None] = [draw(index, temperature=temperature, top_p=0.9) for index in range(3)]
    assert drawn(TritonKernels(), rows, draws, device) == [1, 1, 1]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("kernels", [TritonKernels(), TorchKernels()])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_all_numbers_draws_no_token_and_spares_the_others(
    kernels: KernelSet, bad: float, device: torch.device
) -> None:
    logits = noise(4, 100)
    logits[1, 70], logits[2, 3] = bad, bad
    draws: list[Draw | None] = [draw(), draw(), draw(temperature=0.0), draw(top_k=4)]
    expected = sample(logits.nan_to_num(), draws).tolist()
    assert drawn(kernels, logits, draws, device) == [expected[0], -1, -1, expected[3]]


def test_a_scratch_made_for_fewer_rows_is_refused(device: torch.device) -> None:
    kernels, logits = TritonKernels(), noise(3, 100).to(device)
    scratch, tokens = kernels.sample_scratch(2, 100, device), torch.empty(3, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match=r"^scratch of \(2, \d+\): 3 rows of \d+ parts need another$"):
        kernels.sample(logits, draw_rows([None] * 3).to(device), tokens, scratch)


@pytest.mark.long
def test_tokens_are_those_of_the_sampler_over_a_real_vocabulary(device: torch.device) -> None:
    draws: list[Draw | None] = [draw(at, seed=at, temperature=0.6 + 0.2 * (at % 4), **how) for at, how in enumerate(FILTERS)]
    logits = noise(len(draws), 151_936)
    assert drawn(TritonKernels(), logits, draws, device) == sample(logits, draws).tolist()
