"""Token embeddings, which some models scale up before their first layer."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Embedding(nn.Module):
    """`scale` is rounded to the weights' type before it multiplies, as in Gemma.

    torch's own module draws a random table when it is made, which loads torch's compiler: seconds for nothing.
    """

    def __init__(self, num_tokens: int, dim: int, scale: float | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.empty(num_tokens, dim))
        self.scale = scale

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = functional.embedding(tokens, self.weight)
        return embedded if self.scale is None else embedded * embedded.new_full((), self.scale)
