"""Computes a step with torch's modules, on CPU or, by the same code, on a GPU."""

import torch
from torch import Tensor

from twostep.core.kv_layout import KVLayout
from twostep.engine.batch import Batch
from twostep.engine.forward_batch import ForwardBatchBuilder
from twostep.engine.models.causal_lm import CausalLM
from twostep.engine.runner import OnLayers


class TorchForward:
    """Implements `Forward`; `words` is the KV pool of `layout`, see `TorchKVCache`."""

    def __init__(self, model: CausalLM, words: Tensor, layout: KVLayout, dtype: torch.dtype, *, layer_group: int) -> None:
        self.numerics = _numerics(words.device)
        self._model = model
        self._pools = words.view(dtype).view(*words.shape[:-1], 2, layout.head_dim)
        self._builder = ForwardBatchBuilder(layout, model.facts.windows, dtype, words.device)
        self._layer_group = layer_group

    @torch.inference_mode()
    def logits(self, batch: Batch, on_layers: OnLayers) -> Tensor:
        forward, num_layers = self._builder.build(batch), self._model.facts.num_layers
        hidden, inputs = self._model.begin(forward)
        for first in range(0, num_layers, self._layer_group):
            layers = range(first, min(first + self._layer_group, num_layers))
            for layer in layers:
                hidden = self._model.run_layer(layer, hidden, inputs, self._pools[layer])
            finish(hidden.device)
            on_layers(layers)
        if not forward.num_draws:
            return hidden.new_empty((0, self._model.facts.vocab_size), dtype=torch.float32)
        return self._model.logits(hidden[forward.draw_rows])[: forward.num_draws].float()


def finish(device: torch.device) -> None:
    """Wait until what was asked of the device is done: who hears of layers reads them beside its order of work."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _numerics(device: torch.device) -> str:
    where = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else torch.cuda.get_device_name(device)
    return f"torch {torch.__version__.partition('+')[0]} {where}"
