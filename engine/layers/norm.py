"""Root-mean-square normalisation (Zhang and Sennrich 2019)."""

import torch
from torch import Tensor, nn

from twostep.engine.kernels.reference import rms_norm, rms_norm_from_one


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def scale(self) -> Tensor:
        """Return what normalised numbers are multiplied by, float32 [dim]."""
        return self.weight.float()


class RMSNormFromOne(nn.Module):
    """Gemma's: the stored weight is what the scale has beyond one."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm_from_one(x, self.weight, self.eps)

    def scale(self) -> Tensor:
        """See `RMSNorm.scale`."""
        return 1.0 + self.weight.float()
