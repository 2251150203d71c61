"""Where the kernels run: on the GPU with TRITON_INTERPRET=0, else on CPU by Triton's interpreter.

Triton is had on Linux alone, where `tests/house/test_packaging.py` sees to it that it is installed. Elsewhere there are none
of these tests.
"""

from importlib.util import find_spec

import pytest
import torch

INTERPRETED = False
collect_ignore_glob = []
if find_spec("triton") is None:
    collect_ignore_glob.append("test_*.py")
else:
    from triton import knobs

    INTERPRETED = bool(knobs.runtime.interpret)

if INTERPRETED:
    from twostep.benchmarks.gpu_rows.interpreter import mend_interpreter

    mend_interpreter()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda:0")
