"""Draws the next token: a pure function of logits, sampling parameters, seed, choice and index.

The noise is counter-based: number `v` of a draw is a hash of (seed, choice, index, v) in integer arithmetic, the same on
every device, in every batch and on every node. A draw is the arg max of logits plus Gumbel noise.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from twostep.engine.batch import Draw

SAMPLER_VERSION = "gumbel:splitmix64:v1"

_GAMMA = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_NUCLEUS_GUESS = 256
"""How many of the largest probabilities are looked at before a whole row is sorted for top-p."""


def sample(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Return one token for each row: int64 [row], for `logits` [row, vocab]. A greedy row costs an arg max."""
    tokens = logits.argmax(dim=-1)
    for row, draw in enumerate(draws):
        if draw.sampling.temperature > 0:
            tokens[row] = _draw(logits[row].float() / draw.sampling.temperature, draw)
    return tokens


def _draw(scaled: Tensor, draw: Draw) -> Tensor:
    """Return the token drawn from `scaled` [vocab]. One row at a time: it stays in the cache, and no mate changes it."""
    allowed = torch.nonzero(scaled >= threshold(scaled, draw)).squeeze(-1)
    noise = gumbel(draw.sampling.seed, draw.choice, draw.index, allowed)
    return allowed[(scaled[allowed] + noise).argmax()]


def threshold(scaled: Tensor, draw: Draw) -> Tensor:
    """Return the least logit that top-k, then top-p of what is left, and min-p allow.

    Filters are thresholds, so that equal logits are kept or dropped together, whatever a sort makes of ties.
    """
    sampling = draw.sampling
    least = torch.full((), -torch.inf, device=scaled.device)
    if 0 < sampling.top_k < scaled.shape[-1]:
        least = scaled.topk(sampling.top_k).values[-1]
    if sampling.top_p < 1:
        least = torch.maximum(least, _nucleus(scaled.where(scaled >= least, -torch.inf), sampling.top_p))
    if sampling.min_p > 0:
        least = torch.maximum(least, scaled.max() + torch.tensor(sampling.min_p, device=scaled.device).log())
    return least


def _nucleus(scaled: Tensor, top_p: float) -> Tensor:
    """Return the last logit of the smallest set of largest ones whose probabilities sum to `top_p` or more."""
    total = scaled.logsumexp(-1)
    for num in (_NUCLEUS_GUESS, scaled.shape[-1]):
        largest = scaled.topk(min(num, scaled.shape[-1])).values
        mass = (largest - total).exp().cumsum(-1)
        reached = int((mass < top_p).sum())
        if reached < len(largest):
            return largest[reached]
    return largest[-1]


def gumbel(seed: int, choice: int, index: int, tokens: Tensor) -> Tensor:
    """Return float32 Gumbel noise for `tokens` int64 [n], each number depending on its token id and on nothing else."""
    key = draw_key(seed, choice, index)
    bits = _mix(tokens * _signed(_GAMMA) + _signed(key))
    # 53 bits as a float keep their relative precision near 0, where the smallest of many exponentials lies.
    uniform = ((bits >> 11) & ((1 << 53) - 1) | 1).float() * 2.0**-53
    return -(-torch.log1p(-uniform)).log()


def draw_key(seed: int, choice: int, index: int) -> int:
    """Return 64 bits that name one draw."""
    key = 0
    for part in (seed, choice, index):
        key = _mix_int((key + part * _GAMMA + _GAMMA) & _mask(64))
    return key


def _mix(z: Tensor) -> Tensor:
    """Return splitmix64's output function (Steele, Lea and Flood, OOPSLA 2014) of int64 `z`, which wraps."""
    z = (z ^ ((z >> 30) & _mask(34))) * _signed(_FIRST)
    z = (z ^ ((z >> 27) & _mask(37))) * _signed(_SECOND)
    return z ^ ((z >> 31) & _mask(33))


def _mix_int(z: int) -> int:
    z = ((z ^ (z >> 30)) * _FIRST) & _mask(64)
    z = ((z ^ (z >> 27)) * _SECOND) & _mask(64)
    return z ^ (z >> 31)


def _mask(bits: int) -> int:
    return (1 << bits) - 1


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits."""
    return value - (1 << 64) if value >> 63 else value
