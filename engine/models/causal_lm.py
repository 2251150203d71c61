"""The seam between the runner and a model family."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from torch import Tensor, nn

from twostep.engine.layers.attention import LayerInputs
from twostep.engine.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What others need to know of a model; `rope` describes its positions, `max_tokens` is what it was trained for."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_tokens: int
    rope: str


class CausalLM(Protocol):
    """A decoder whose parameters are named as Hugging Face names them, without the leading `model.`.

    `packed` maps a module that joins several of Hugging Face's, such as `qkv_proj`, to their names, in order. `ignored`
    are tensor names that a folder may hold and this model does not need.
    """

    packed: ClassVar[Mapping[str, tuple[str, ...]]]
    facts: ModelFacts
    ignored: frozenset[str]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build the model that a `config.json` describes. Raises ConfigError, naming key and value."""

    def as_module(self) -> nn.Module:
        """Return the module whose parameters are to be loaded."""

    def begin(self, plan: StepPlan) -> tuple[Tensor, LayerInputs]:
        """Return the embedded tokens [row, dim] and what all layers of the step share."""

    def run_layer(self, layer: int, hidden: Tensor, inputs: LayerInputs, pool: Tensor) -> Tensor:
        """Return [row, dim] after one layer, whose KV it writes into `pool`, that layer's."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [row, vocab] for the final `hidden` [row, dim]."""
