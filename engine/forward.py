"""The seam between the runner and what computes a step: modules in torch, or kernels of our own on CPU."""

from typing import Protocol

from torch import Tensor

from twostep.engine.batch import Batch
from twostep.engine.runner import OnLayers


class Forward(Protocol):
    """A model over one KV cache. Used by one thread at a time.

    `numerics` is text that two nodes share if and only if their bits are meant to be equal.
    """

    @property
    def numerics(self) -> str: ...

    def logits(self, batch: Batch, on_layers: OnLayers) -> Tensor:
        """Write the batch's KV and return the logits of the chunks that draw, float32 [draw, vocab]; see `Runner`.

        They are good until the next call.
        """
