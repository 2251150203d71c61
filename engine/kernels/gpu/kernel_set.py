"""Triton's kernels as a `KernelSet`."""

from twostep.engine.kernels.gpu.activation import gelu_and_multiply, silu_and_multiply
from twostep.engine.kernels.gpu.chunk_attention import attend_chunks
from twostep.engine.kernels.gpu.decode_attention import attend_decodes, decode_scratch
from twostep.engine.kernels.gpu.norm import add_rms_norm, rms_norm, rms_norm_add
from twostep.engine.kernels.gpu.sampling import sample, sample_scratch
from twostep.engine.kernels.gpu.store import rotate_and_store


class TritonKernels:
    """Implements `KernelSet`, on a GPU, or on CPU by Triton's interpreter."""

    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)
    rms_norm_add = staticmethod(rms_norm_add)
    silu_and_multiply = staticmethod(silu_and_multiply)
    gelu_and_multiply = staticmethod(gelu_and_multiply)
    rotate_and_store = staticmethod(rotate_and_store)
    attend_decodes = staticmethod(attend_decodes)
    decode_scratch = staticmethod(decode_scratch)
    attend_chunks = staticmethod(attend_chunks)
    sample = staticmethod(sample)
    sample_scratch = staticmethod(sample_scratch)
