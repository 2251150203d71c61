"""The seam between the runner and a model family."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from twostep.engine.forward_batch import ForwardBatch
from twostep.engine.layers.attention import LayerInputs
from twostep.engine.layers.layer_kind import LayerKind, rope_description, window_description


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What others need to know of a model: `kinds`, one for each layer; `max_tokens`, what it was trained for."""

    kinds: tuple[LayerKind, ...]
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_tokens: int
    config: str = ""
    """A digest of everything in `config.json` that the model was built from."""

    @property
    def num_layers(self) -> int:
        return len(self.kinds)

    @property
    def windows(self) -> frozenset[int | None]:
        return frozenset(kind.window for kind in self.kinds)

    @property
    def rope(self) -> str:
        return rope_description(self.kinds)

    @property
    def sliding_window(self) -> str:
        return window_description(self.kinds)


class CausalLM(Protocol):
    """A decoder whose parameters are named as Hugging Face names them, without the leading `model.`.

    `packed` maps a module that joins several of the folder's, such as `qkv_proj`, to their names, in order. `ignored`
    are tensor names that a folder may hold and this model does not need.
    """

    packed: Mapping[str, tuple[str, ...]]
    facts: ModelFacts
    ignored: frozenset[str]

    def as_module(self) -> nn.Module:
        """Return the module whose parameters are to be loaded."""

    def begin(self, batch: ForwardBatch) -> tuple[Tensor, LayerInputs]:
        """Return the embedded tokens [row, dim] and what all layers of the step share."""

    def run_layer(self, layer: int, hidden: Tensor, inputs: LayerInputs, pool: Tensor) -> Tensor:
        """Return [row, dim] after one layer, whose KV it writes into `pool`, that layer's."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [row, vocab] for the final `hidden` [row, dim]."""
