"""The sampler draws from the right distribution, from exactly the allowed tokens, and as a pure function of its inputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from twostep.core.digest import splitmix64
from twostep.core.request import SamplingParams
from twostep.engine.batch import Draw
from twostep.engine.sampler import allowed_tokens, draw_key, gumbel, sample

CHI_SQUARE_999 = 24.32
"""What a chi-square statistic of 7 degrees of freedom exceeds once in a thousand."""


def draw(index: int = 0, *, seed: int = 1, choice: int = 0, temperature: float = 1.0, **filters: Any) -> Draw:
    return Draw(SamplingParams(seed, temperature, **filters), index, choice)


def counts(logits: Sequence[float], num_draws: int, **how: Any) -> Tensor:
    rows = torch.tensor(logits).expand(num_draws, -1)
    tokens = sample(rows, [draw(index, **how) for index in range(num_draws)])
    return torch.bincount(tokens, minlength=len(logits))


def chi_square(found: Tensor, probabilities: Tensor) -> float:
    expected = probabilities.double() * found.sum()
    return float(((found - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax_of_the_scaled_logits(temperature: float) -> None:
    logits = [0.0, 1.0, -1.0, 2.0, 0.5, 0.3, -0.2, 1.5]
    found = counts(logits, 2000, temperature=temperature)
    assert chi_square(found, (torch.tensor(logits) / temperature).softmax(-1)) < CHI_SQUARE_999


@pytest.mark.parametrize("other", [draw(seed=2), draw(choice=1), draw(1), draw(1 << 20)])
def test_the_noise_of_another_seed_choice_or_index_is_independent(other: Draw) -> None:
    tokens = torch.arange(1 << 16)
    both = torch.stack((gumbel(draw(), tokens), gumbel(other, tokens)))
    assert abs(float(torch.corrcoef(both)[0, 1])) < 4 / (1 << 8)  # four standard deviations
    assert not (both[0] == both[1]).any()


def test_noise_is_gumbel_far_into_its_tail() -> None:
    # Above a float32 uniform's resolution of 2^-24 there would be steps; a token of low probability lives on this tail.
    noise = gumbel(draw(), torch.arange(1 << 22))
    for bits, low, high in ((4, 252_500, 255_500), (12, 900, 1150), (20, 1, 12)):
        assert low < int((noise > bits * np.log(2)).sum()) < high


def test_greedy_takes_the_largest_logit() -> None:
    rows = torch.tensor([[0.0, 3.0, 1.0], [2.0, -1.0, 0.5]])
    assert sample(rows, [draw(temperature=0.0), draw(temperature=0.0)]).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("filters", "allowed"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 5}, [0, 1, 2, 3, 4]),
        ({"top_k": 3}, [0, 1, 3, 4]),  # two tokens share the third place
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.41}, [1, 3]),
        ({"top_p": 0.94}, [0, 1, 3, 4]),
        ({"top_p": 0.0}, [1]),
        ({"min_p": 0.5}, [1, 3]),
        ({"min_p": 0.2}, [0, 1, 3, 4]),
        ({"top_k": 2, "top_p": 0.55}, [1]),  # of 0.4 and 0.3, renormalised, the first alone has 0.57
        ({"top_k": 2, "min_p": 0.8}, [1]),
        ({"min_p": 1.0}, [1]),
    ],
)
def test_filters_allow_exactly_their_tokens(filters: dict[str, Any], allowed: list[int]) -> None:
    probabilities = torch.tensor([0.125, 0.4, 0.05, 0.3, 0.125])
    scaled = probabilities.log() - probabilities.max().log()
    assert allowed_tokens(scaled, SamplingParams(1, **filters)).tolist() == allowed
    drawn = counts(probabilities.log().tolist(), 300, **filters)
    assert drawn.nonzero().flatten().tolist() == allowed


@given(st.floats(0.05, 0.999), st.integers(0, 1000))
def test_the_nucleus_of_a_long_row_is_that_of_its_sorted_probabilities(top_p: float, seed: int) -> None:
    scaled = torch.randn(6000, generator=torch.Generator().manual_seed(seed)) * 2
    scaled -= scaled.max()
    order = scaled.argsort(descending=True)
    mass = scaled[order].double().softmax(-1).cumsum(-1)
    num_kept = int((mass < top_p).sum()) + 1
    kept = len(allowed_tokens(scaled, SamplingParams(1, top_p=top_p)))
    assert abs(kept - num_kept) <= 1  # float32 sums


@given(st.permutations(range(6)), st.integers(1, 5))
def test_neither_order_nor_split_of_a_batch_changes_a_draw(order: list[int], split: int) -> None:
    rows = torch.randn(6, 50, generator=torch.Generator().manual_seed(3))
    draws = [draw(4), draw(4, seed=9), draw(temperature=0.0), draw(top_k=3), draw(top_p=0.5), draw(min_p=0.1, choice=2)]
    whole = sample(rows, draws)
    shuffled = [draws[row] for row in order]
    parts = torch.cat((sample(rows[order][:split], shuffled[:split]), sample(rows[order][split:], shuffled[split:])))
    assert parts.tolist() == whole[order].tolist()


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-40])
def test_a_temperature_near_zero_draws_the_largest_logit(temperature: float) -> None:
    rows = torch.tensor([[90.0, 91.0, -80.0]]).expand(50, -1)
    assert set(sample(rows, [draw(index, temperature=temperature) for index in range(50)]).tolist()) == {1}


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 3), st.integers(0, 1 << 20))
def test_noise_is_splitmix64_of_the_draw_and_the_token(seed: int, choice: int, index: int) -> None:
    this = draw(index, seed=seed, choice=choice)
    tokens = np.array([0, 1, 2, 49151], dtype=np.uint64)
    with np.errstate(over="ignore"):
        # numpy's `splitmix64` multiplies its counter by the same odd number that spreads the tokens here.
        inverse = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
        bits = splitmix64(tokens + np.uint64(draw_key(this)) * inverse)
    uniform = ((bits >> np.uint64(11)) | np.uint64(1)).astype(np.float64) * 2.0**-53
    expected = -np.log(-np.log1p(-uniform))
    torch.testing.assert_close(gumbel(this, torch.arange(3)), torch.from_numpy(expected[:3]).float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        gumbel(this, torch.tensor([49151])), torch.from_numpy(expected[3:]).float(), rtol=1e-4, atol=1e-5
    )
