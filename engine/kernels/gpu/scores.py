"""How scores are scaled in attention kernels: their exponentials are powers of two."""

import math

from twostep.engine.kernels.reference import Score


def binary_scales(score: Score, dim: int) -> tuple[float, float]:
    """Return what a product is multiplied by to be a binary exponent, and, where there is a cap, what by before it is bent.

    With a cap: exponent = scale * tanh(bend * product); without: exponent = scale * product.
    """
    scale = dim**-0.5 if score.scale is None else score.scale
    if score.cap is None:
        return scale / math.log(2), 0.0
    return score.cap / math.log(2), scale / score.cap
