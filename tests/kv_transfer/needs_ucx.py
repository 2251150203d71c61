"""Marks what runs only where the extra ucx is installed. Nothing is imported to find out: ucxx would change the environment."""

import importlib.util
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T", bound=Callable[..., object])
IS_MISSING = importlib.util.find_spec("ucxx") is None
NEEDS_UCX = (pytest.mark.processes, pytest.mark.skipif(IS_MISSING, reason="the extra ucx is not installed"))
"""For parameters."""


def needs_ucx(test: T) -> T:
    for mark in NEEDS_UCX:
        test = mark(test)
    return test
