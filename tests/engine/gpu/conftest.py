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
    from triton.runtime import interpreter

    INTERPRETED = bool(knobs.runtime.interpret)

if INTERPRETED:
    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_with_index(tensor: type, scope: object) -> None:
        patch_tensor(tensor, scope)
        # Triton 3.6 asks int() for an array of one number as a loop's bound, which numpy refuses from 2.4 on.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patch_tensor_with_index


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda:0")
