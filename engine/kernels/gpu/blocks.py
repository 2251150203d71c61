"""Triton's kernels as `BlockKernels`."""

from twostep.engine.kernels.gpu.block_digest import digest_blocks
from twostep.engine.kernels.gpu.copy_in import copy_in


class TritonBlocks:
    """Implements `BlockKernels`, on a GPU, or on CPU by Triton's interpreter."""

    copy_in = staticmethod(copy_in)
    digest = staticmethod(digest_blocks)
