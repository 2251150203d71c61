"""Every kernel compiles for an H200 and fits it: no register spills, and a program's tiles fit its shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

H200_SHARED_BYTES = 227 << 10
H200_REGISTERS = 1 << 16


def compiled(cache: Path, *options: str) -> list[dict[str, Any]]:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "twostep.tests.engine.gpu.compiling", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def misfits(needs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        one
        for one in needs
        if one["spilled_bytes"] or one["shared_bytes"] > H200_SHARED_BYTES or one["registers"] * one["threads"] > H200_REGISTERS
    ]


@pytest.mark.processes
def test_the_kernels_of_a_usual_model_compile_for_an_h200_and_fit(tmp_path: Path) -> None:
    needs = compiled(tmp_path)
    assert misfits(needs) == []
    assert {one["kernel"] for one in needs} == {
        *("_attend_split", "_join_splits", "_attend_tile", "_rotate_and_store", "_norm_rows", "_activate_and_multiply"),
        *("_find_peaks", "_propose", "_decide", "_copy_in", "_digest_blocks"),
    }
    # One is launched for chunks alone and for chunks behind a decode, which may not be compiled for while serving.
    assert len({one["variant"] for one in needs if one["kernel"] == "_attend_tile"}) == 1
    assert {one["kernel"]: one["multiplies"] for one in needs if one["multiplies"]} == {
        "_attend_split": "mma",
        "_attend_tile": "wgmma",
    }


@pytest.mark.long
def test_the_kernels_of_every_shape_compile_for_an_h200_and_fit(tmp_path: Path) -> None:
    assert misfits(compiled(tmp_path, "--all")) == []
