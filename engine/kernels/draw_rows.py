"""How each row of a batch's logits is to be drawn from, as columns that a device can hold."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twostep.core.request import SamplingParams
from twostep.engine.batch import Draw
from twostep.engine.sampler import draw_key

GREEDY = Draw(SamplingParams(seed=0, temperature=0.0), index=0)


@dataclass(frozen=True, slots=True)
class DrawRows:
    """One number a row in each column, [row]. All but `keys` belong to the request; a key is that of one draw.

    `keys` int64 are `draw_key`s, as signed numbers; `temperature` and `top_p` float32; `top_k` int32, 0: off; `least` float32
    is the logarithm of min-p: what a token's scaled logit must reach, against the row's largest.
    """

    keys: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    least: Tensor

    @property
    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.keys, self.temperature, self.top_k, self.top_p, self.least

    def to(self, device: torch.device) -> "DrawRows":
        return DrawRows(*(column.to(device) for column in self.columns))


def draw_rows(draws: Sequence[Draw | None]) -> DrawRows:
    """Return the columns of `draws`, in host memory. None stands for a row of padding: it is drawn greedily, for nothing."""
    known = [draw or GREEDY for draw in draws]
    sampling = [draw.sampling for draw in known]
    keys = np.array([draw_key(draw) for draw in known], dtype=np.uint64)
    return DrawRows(
        keys=torch.from_numpy(keys.view(np.int64)),
        temperature=torch.tensor([one.temperature for one in sampling], dtype=torch.float32),
        top_k=torch.tensor([one.top_k for one in sampling], dtype=torch.int32),
        top_p=torch.tensor([one.top_p for one in sampling], dtype=torch.float32),
        least=torch.tensor([one.min_p for one in sampling], dtype=torch.float32).log(),
    )
