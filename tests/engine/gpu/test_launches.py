"""Launches are found by a device's name, then its generation, then the default, for a class of shapes or for any."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from twostep.engine.kernels.gpu import launches
from twostep.engine.kernels.gpu.launches import Launch, find_launch

TABLES: dict[str, Any] = tomllib.loads(Path(launches.__file__).with_name("launches.toml").read_text())
KERNELS = ["norm", "activation", "store", "digest", "propose", "decide", "decode", "chunk"]


def test_the_nearest_launch_is_taken() -> None:
    tables = {
        "default": {"norm": {"any": {"tile": 1}, "64": {"tile": 2}}, "store": {"any": {"tile": 3}}},
        "sm_90": {"norm": {"64": {"tile": 4}}},
        "NVIDIA H200": {"norm": {"128": {"tile": 5, "num_warps": 8}}},
    }
    devices = ("NVIDIA H200", "sm_90")
    assert find_launch(tables, devices, "norm", "128") == Launch(tile=5, num_warps=8)
    assert find_launch(tables, devices, "norm", "64") == Launch(tile=4)
    assert find_launch(tables, devices, "norm", "32") == Launch(tile=1)
    assert find_launch(tables, ("NVIDIA L4", "sm_89"), "norm", "64") == Launch(tile=2)
    assert find_launch(tables, devices, "store", "64") == Launch(tile=3)


def test_a_kernel_without_a_default_is_an_error() -> None:
    with pytest.raises(LookupError, match="no default launch of chunk for bfloat16-64"):
        find_launch({"default": {}}, ("sm_90",), "chunk", "bfloat16-64")


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_has_a_default_for_any_shape(kernel: str) -> None:
    assert find_launch(TABLES, (), kernel, "some shape").num_warps >= 1


def test_the_table_names_kernels_that_exist_and_only_known_numbers() -> None:
    for kernels in TABLES.values():
        assert kernels.keys() <= set(KERNELS)
        for shapes in kernels.values():
            for launch in shapes.values():
                Launch(**launch)
