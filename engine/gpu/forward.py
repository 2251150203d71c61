"""One step on a device, from its numbers to the drawn tokens: nothing in it waits for the device, all of it can be captured."""

from collections.abc import Callable

from torch import Tensor

from twostep.core.kv_layout import KVLayout
from twostep.engine.gpu.decoder import GpuDecoder, Layer, StepRows
from twostep.engine.gpu.device import Device
from twostep.engine.gpu.rows import RequestRows
from twostep.engine.gpu.step_inputs import StepInputs
from twostep.engine.kernels.kernel_set import DecodeScratch, KernelSet
from twostep.engine.kernels.reference import Score
from twostep.engine.models.decoder import Decoder

Written = Callable[[range], None]


def ignore_layers(layers: range) -> None:
    """Nobody waits for these."""
    del layers


class GpuForward:
    """Computes steps of up to `max_batch` sequences over the KV cache `pools` of `layout`, see `GpuDecoder`."""

    def __init__(
        self,
        model: Decoder,
        pools: Tensor,
        layout: KVLayout,
        device: Device,
        *,
        max_batch: int,
        max_tokens: int,
        layer_group: int,
    ) -> None:
        self.rows = RequestRows(device, max_batch, layout.num_blocks(max_tokens))
        self.layer_groups = [
            range(first, min(first + layer_group, layout.num_layers)) for first in range(0, layout.num_layers, layer_group)
        ]
        self._kernels = device.kernels
        self._decoder = GpuDecoder(model, device.kernels, pools, max_tokens=max_tokens)
        first = model.layers[0]
        assert isinstance(first, Layer)
        shape = first.self_attn.shape
        self._scratch = device.kernels.decode_scratch(
            max_batch, shape.num_heads, shape.num_kv_heads, shape.head_dim, device.place
        )
        self._sampling = device.kernels.sample_scratch(max_batch, model.facts.vocab_size, device.place)

    def run(self, inputs: StepInputs, drawn: Tensor, written: Written = ignore_layers) -> None:
        """Write the KV of all rows and the drawn tokens into `drawn` [draw]: -1 where logits are not numbers.

        `written` is called when the work that writes a group of layers has been launched.
        """
        fed = self.rows.last_tokens[inputs.feeds]
        # One that could not be drawn is -1: its request is over, but a step that nobody waits for may still be fed with it.
        tokens = inputs.tokens.where(inputs.tokens >= 0, fed).clamp(min=0)
        hidden, rotations = self._decoder.begin(tokens, inputs.positions)
        attend = _Attention(self._kernels, self._scratch, self.rows.tables[inputs.rows], inputs)
        rows = StepRows(rotations, inputs.slots, attend)
        for group in self.layer_groups:
            for layer in group:
                self._decoder.run_layer(layer, hidden, rows)
            written(group)
        if len(drawn):
            logits = self._decoder.logits(hidden if inputs.drawing is None else hidden.rows(inputs.drawing))
            self._kernels.sample(logits, inputs.draws, drawn, self._sampling)
            self.rows.last_tokens.index_copy_(0, inputs.drawers, drawn)


class _Attention:
    """Implements `Attend` for one step: decodes split their contexts over the device, longer runs of rows share theirs."""

    def __init__(self, kernels: KernelSet, scratch: DecodeScratch, tables: Tensor, inputs: StepInputs) -> None:
        self._kernels, self._scratch, self._tables = kernels, scratch, tables
        self._num_decodes, self._starts, self._num_keys = inputs.num_decodes, inputs.starts, inputs.num_keys

    def __call__(self, query: Tensor, pool: Tensor, out: Tensor, *, score: Score, window: int | None) -> None:
        num = self._num_decodes
        if num:
            decodes = query[:num], pool, self._tables[:num], self._num_keys[:num], out[:num], self._scratch
            self._kernels.attend_decodes(*decodes, score=score, window=window)
        if self._starts is not None and num < len(self._num_keys):
            chunks = query[num:], pool, self._tables[num:], self._starts, self._num_keys[num:], out[num:]
            self._kernels.attend_chunks(*chunks, score=score, window=window)
