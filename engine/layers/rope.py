"""Rotary position embedding: which frequencies a model turns its queries and keys by."""

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretching of long wavelengths; lengths in tokens."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def scale(self, frequencies: Tensor) -> Tensor:
        """Return the frequencies with long wavelengths divided by `factor`, a smooth ramp between the two bounds."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        ramp = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = ramp.clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All positions divided by `factor`."""

    factor: float

    def scale(self, frequencies: Tensor) -> Tensor:
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """Each frequency divided by a factor of its own (Ding et al. 2024), in sequences of up to `max_tokens`.

    In longer ones all positions would be turned by other factors, from the first on: KV could not be reused across lengths.
    """

    factors: tuple[float, ...]
    max_tokens: int

    def scale(self, frequencies: Tensor) -> Tensor:
        return frequencies / torch.tensor(self.factors, dtype=frequencies.dtype, device=frequencies.device)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """The first `dim` numbers of each head are turned, in halves, and multiplied by `magnitude`."""

    dim: int
    theta: float
    scaling: Llama3Scaling | LinearScaling | LongRopeScaling | None = None
    magnitude: float = 1.0

    @property
    def description(self) -> str:
        """Text that is equal if and only if the rotation is."""
        scaling = "none" if self.scaling is None else f"{type(self.scaling).__name__}{asdict(self.scaling)}"
        return f"halves:dim={self.dim}:theta={self.theta}:magnitude={self.magnitude}:scaling={scaling}"


class Rope:
    """Turns positions into cosines and sines, once per step; all layers of this configuration share them."""

    def __init__(self, config: RopeConfig) -> None:
        self.config = config
        exponents = torch.arange(0, config.dim, 2, dtype=torch.float32, device="cpu") / config.dim
        frequencies = 1.0 / config.theta**exponents
        self.frequencies = config.scaling.scale(frequencies) if config.scaling else frequencies

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each [token, 1, dim], times the magnitude, for `positions` [token]."""
        self.frequencies = self.frequencies.to(positions.device)
        angles = torch.outer(positions.float(), self.frequencies).repeat(1, 2)[:, None]
        magnitude = self.config.magnitude
        return (angles.cos() * magnitude).to(dtype), (angles.sin() * magnitude).to(dtype)
