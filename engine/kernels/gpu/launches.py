"""How each kernel is launched on each device: read from `launches.toml`, never measured while serving."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from twostep.engine.kernels.gpu.floats import INTERPRETED

DEFAULT = "default"
ANY_SHAPE = "any"


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel's tiles and the threads that share one.

    `tile` counts what a kernel takes in one stride: keys, numbers or logits; `rows` the queries that go with them. `programs`
    is how many programs fill the device: a kernel that can split its work aims at that many.
    """

    tile: int = 0
    rows: int = 0
    programs: int = 0
    num_warps: int = 4
    num_stages: int = 2


def find_launch(tables: Mapping[str, Any], devices: tuple[str, ...], kernel: str, shape: str) -> Launch:
    """Return the launch of the first of `devices` that has one for the kernel, for its shape or for any."""
    for device in (*devices, DEFAULT):
        shapes = tables.get(device, {}).get(kernel, {})
        if found := shapes.get(shape) or shapes.get(ANY_SHAPE):
            return Launch(**found)
    raise LookupError(f"launches.toml has no {DEFAULT} launch of {kernel} for {shape}")


@lru_cache
def launch_of(device: torch.device, kernel: str, shape: str) -> Launch:
    """Return the launch of a kernel for a class of shapes: by the device's name, then its generation, else the default."""
    return find_launch(_tables(), _names(device), kernel, shape)


@lru_cache
def _tables() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("launches.toml").read_text())


@lru_cache
def _names(device: torch.device) -> tuple[str, ...]:
    if INTERPRETED or device.type != "cuda":
        return ("interpreter",)
    major, minor = torch.cuda.get_device_capability(device)
    return torch.cuda.get_device_name(device), f"sm_{major}{minor}"
