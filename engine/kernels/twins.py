"""The `KernelSet` in plain torch: what every kernel is compared with, on any device. It allocates, and waits for the device."""

from collections.abc import Callable

import torch
from torch import Tensor

from twostep.core.request import SamplingParams
from twostep.engine.kernels.draw_rows import DrawRows
from twostep.engine.kernels.kernel_set import DecodeScratch, HeadNorms, SampleScratch
from twostep.engine.kernels.reference import (
    Score,
    gelu_and_multiply,
    rms_norm,
    rms_norm_from_one,
    rotate,
    silu_and_multiply,
    soft_cap,
)
from twostep.engine.sampler import allowed_tokens, gumbel_of_key


class TorchKernels:
    """Implements `KernelSet`."""

    def rms_norm(self, x: Tensor, weight: Tensor, out: Tensor, *, eps: float, from_one: bool) -> None:
        out.copy_(_norm(from_one)(x, weight, eps))

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, *, eps: float, from_one: bool) -> None:
        residual.add_(x)
        out.copy_(_norm(from_one)(residual, weight, eps))

    def rms_norm_add(self, x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, from_one: bool) -> None:
        residual.add_(_norm(from_one)(x, weight, eps))

    def silu_and_multiply(self, gate_and_up: Tensor, out: Tensor) -> None:
        out.copy_(silu_and_multiply(gate_and_up))

    def gelu_and_multiply(self, gate_and_up: Tensor, out: Tensor) -> None:
        out.copy_(gelu_and_multiply(gate_and_up))

    def rotate_and_store(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, pool: Tensor, norms: HeadNorms | None
    ) -> None:
        num_kv_heads, block_tokens = pool.shape[1:3]
        num_heads = qkv.shape[1] - 2 * num_kv_heads
        query, key, value = qkv.tensor_split((num_heads, num_heads + num_kv_heads), dim=1)
        if norms:
            norm = _norm(norms.from_one)
            query, key = norm(query, norms.query, norms.eps), norm(key, norms.key, norms.eps)
        angles = cos[:, None].float(), sin[:, None].float()
        query, key = (rotate(one.float(), *angles).to(qkv.dtype) for one in (query, key))
        stored = slots >= 0
        blocks, places = slots[stored] // block_tokens, slots[stored] % block_tokens
        pool[blocks, :, places] = torch.stack((key, value), dim=2)[stored]
        qkv[:, :num_heads] = query

    def attend_decodes(
        self,
        query: Tensor,
        pool: Tensor,
        tables: Tensor,
        num_keys: Tensor,
        out: Tensor,
        scratch: DecodeScratch,
        *,
        score: Score,
        window: int | None,
    ) -> None:
        row_starts = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device)
        self.attend_chunks(query, pool, tables, row_starts, num_keys, out, score=score, window=window)

    def decode_scratch(
        self, max_sequences: int, num_heads: int, num_kv_heads: int, dim: int, device: torch.device
    ) -> DecodeScratch:
        return DecodeScratch(torch.empty(0, device=device), torch.empty(0, device=device))

    def attend_chunks(
        self,
        query: Tensor,
        pool: Tensor,
        tables: Tensor,
        row_starts: Tensor,
        num_keys: Tensor,
        out: Tensor,
        *,
        score: Score,
        window: int | None,
    ) -> None:
        starts = row_starts.tolist()
        for table, end, first, last in zip(tables, num_keys.tolist(), starts, starts[1:], strict=False):
            out[first:last] = _attend(query[first:last], *_gathered(pool, table, end), score, window)

    def sample(self, logits: Tensor, rows: DrawRows, tokens: Tensor, scratch: SampleScratch) -> None:
        columns = [column.tolist() for column in rows.columns]
        for row, (key, temperature, top_k, top_p, least) in enumerate(zip(*columns, strict=True)):
            sampling = SamplingParams(0, temperature, top_k, top_p)
            tokens[row] = _draw(logits[row].float(), key, sampling, least)

    def sample_scratch(self, max_rows: int, vocab_size: int, device: torch.device) -> SampleScratch:
        nothing = torch.empty(0, device=device)
        return SampleScratch(nothing, nothing, nothing, nothing, nothing)


def _norm(from_one: bool) -> Callable[[Tensor, Tensor, float], Tensor]:
    return rms_norm_from_one if from_one else rms_norm


def _gathered(pool: Tensor, table: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """Return the keys and values [kv_head, key, dim] that lie in the blocks of `table`."""
    blocks = table[: -(-num_keys // pool.shape[2])].long()
    lines = pool[blocks].transpose(0, 1).flatten(1, 2)[:, :num_keys]
    return lines[:, :, 0], lines[:, :, 1]


def _attend(query: Tensor, key: Tensor, value: Tensor, score: Score, window: int | None) -> Tensor:
    """Attend, in float32, from the last tokens of a sequence, `query` [token, head, dim]; nothing seen gives zero."""
    num_tokens, num_heads, dim = query.shape
    num_keys = key.shape[1]
    if not num_keys:
        return torch.zeros_like(query)
    key, value = (one.float().repeat_interleave(num_heads // len(key), dim=0) for one in (key, value))
    scale = dim**-0.5 if score.scale is None else score.scale
    scores = soft_cap(query.transpose(0, 1).float() @ key.transpose(1, 2) * scale, score.cap)
    positions = torch.arange(num_keys - num_tokens, num_keys, device=query.device)[:, None]
    places = torch.arange(num_keys, device=query.device)
    seen = (places <= positions) & (places > positions - (window or num_keys))
    chances = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return (chances.to(query.dtype).float() @ value).transpose(0, 1).to(query.dtype)


def _draw(logits: Tensor, key: int, sampling: SamplingParams, least: float) -> Tensor | int:
    """Return a token of one row, as `engine.sampler` draws it, or -1 where the row is not all numbers."""
    if not logits.isfinite().all():
        return -1
    if sampling.temperature <= 0:
        return logits.argmax()
    scaled = (logits - logits.max()) / sampling.temperature
    allowed = allowed_tokens(scaled, sampling)
    allowed = allowed[scaled[allowed] >= least]
    return allowed[(scaled[allowed] + gumbel_of_key(key, allowed)).argmax()]
