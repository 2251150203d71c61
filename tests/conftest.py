"""How many random cases the tests try: `quick`, always the same, or `--hypothesis-profile=deep`, many and new ones.

And what runs the kernels for GPUs: Triton's interpreter, on CPU, unless TRITON_INTERPRET says otherwise. Triton reads that when
it is imported.
"""

import os

from hypothesis import settings

os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("quick", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("deep", max_examples=2000, deadline=None)
settings.load_profile("quick")
