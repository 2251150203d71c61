"""The seam between a forward pass on a device and what computes it: Triton's kernels, or their twins in plain torch.

Everything goes where the caller says: outputs are handed in and nothing is returned, so that a step can be captured once and
replayed. What follows from the shapes of tensors is fixed then; what lies in them is not. A layer's pool is
`[block, kv_head, token, k|v, dim]`. Weights, hidden states and pool are of one type, float32 or bfloat16.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from twostep.engine.kernels.draw_rows import DrawRows
from twostep.engine.kernels.reference import Score


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """The normalisations that each head's query and key go through before they are turned; weights are [dim].

    `from_one`: the weight is what the scale has beyond one, as in `rms_norm_from_one`.
    """

    query: Tensor
    key: Tensor
    eps: float
    from_one: bool


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """What the splits of a context leave for each other: float32 `partial` [place, head, dim] and `weights` [place, head]."""

    partial: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class SampleScratch:
    """What the parts of a row of logits leave for each other; floats and token ids, each [row, part].

    Of each part: its largest logit, its token of the largest noisy logit, and the sum of its unnormalised probabilities.
    """

    peaks: Tensor
    peak_tokens: Tensor
    best: Tensor
    best_tokens: Tensor
    masses: Tensor


class KernelSet(Protocol):
    """The kernels of a decoder. `query` may have any distance between rows; its heads lie together."""

    def rms_norm(self, x: Tensor, weight: Tensor, out: Tensor, *, eps: float, from_one: bool) -> None:
        """Write the normalised rows of `x` [row, dim] to `out`, which may be `x`; see `reference.rms_norm`."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, *, eps: float, from_one: bool) -> None:
        """Add `x` to `residual` in place, and write the sum's normalised rows to `out`, which may be `x`."""

    def rms_norm_add(self, x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, from_one: bool) -> None:
        """Add the normalised rows of `x` to `residual` in place."""

    def silu_and_multiply(self, gate_and_up: Tensor, out: Tensor) -> None:
        """Write silu(gate) * up to `out` [row, dim], where `gate_and_up` [row, 2 * dim] holds both."""

    def gelu_and_multiply(self, gate_and_up: Tensor, out: Tensor) -> None:
        """The same with gelu, by the tanh approximation."""

    def rotate_and_store(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, pool: Tensor, norms: HeadNorms | None
    ) -> None:
        """Normalise and turn the queries of `qkv` [row, head + 2 * kv_head, dim] in place, and write keys, normalised and
        turned, and values into the pool.

        `cos`, `sin` [row, turned], halves alike, as `Rope.angles` gives them; `slots` int64 [row] count tokens from the
        pool's first block on: block times block size plus the place in it. Of a row whose slot is -1 nothing is written to
        the pool.
        """

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
        """Attend from one token of each sequence: `query`, `out` [sequence, head, dim].

        `tables` int32 [sequence, block] are block tables from position 0; `num_keys` int32 [sequence] counts the keys that
        are seen, the token's own among them, of which a window takes the last. Without keys a row of `out` is zero.
        """

    def decode_scratch(
        self, max_sequences: int, num_heads: int, num_kv_heads: int, dim: int, device: torch.device
    ) -> DecodeScratch:
        """Return what `attend_decodes` needs for up to so many sequences, whatever their lengths."""

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
        """Attend from the consecutive tokens of several sequences: `query`, `out` [row, head, dim].

        Sequence i has rows `row_starts`[i] to `row_starts`[i + 1], int32 [sequence + 1], of which the last sees `num_keys`
        [i] keys; all keys, those of the rows too, lie in the pool. Rows beyond the last sequence's are left as they are.
        """

    def sample(self, logits: Tensor, rows: DrawRows, tokens: Tensor, scratch: SampleScratch) -> None:
        """Draw a token for each row of `logits` [row, vocab], float32 or bfloat16, as `engine.sampler.sample` does.

        `tokens` int64 [row]; -1 where a row has a NaN or an infinity.
        """

    def sample_scratch(self, max_rows: int, vocab_size: int, device: torch.device) -> SampleScratch:
        """Return what `sample` needs for up to so many rows."""
