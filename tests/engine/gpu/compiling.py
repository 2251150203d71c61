"""A program that compiles every kernel for an H200, on any machine, and prints what each needs, one JSON object a line.

The launches are our own, by their own wrappers; only what would be a GPU is missing, and nothing is run.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from twostep.core.kv_memory import LandedPiece
from twostep.core.ticket import TokenRange
from twostep.engine.kernels.block_kernels import Landed
from twostep.engine.kernels.draw_rows import draw_rows
from twostep.engine.kernels.gpu import launches
from twostep.engine.kernels.gpu.blocks import TritonBlocks
from twostep.engine.kernels.gpu.kernel_set import TritonKernels
from twostep.engine.kernels.kernel_set import HeadNorms
from twostep.engine.kernels.reference import Score

H200 = GPUTarget("cuda", 90, 32)
HOST = torch.device("cpu")


class AbsentH200:
    """Implements what Triton asks of a driver until it launches."""

    def get_current_target(self) -> GPUTarget:
        return H200

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Needs:
    """What one compiled kernel takes of a multiprocessor. `spilled_bytes` is what did not fit a thread's registers.

    `variant` is alike for launches that run the same machine code.
    """

    case: str
    kernel: str
    variant: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    threads: int
    multiplies: str


def needs_of(case: str, compiled: Any) -> Needs:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        dump = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    used = {name: int(value) for name, value in re.findall(r"(REG|LOCAL|STACK):(\d+)", usage)}
    ptx = compiled.asm["ptx"]
    return Needs(
        case=case,
        kernel=compiled.metadata.name,
        variant=compiled.hash,
        registers=used["REG"],
        spilled_bytes=used["LOCAL"] + used["STACK"],
        shared_bytes=compiled.metadata.shared,
        threads=32 * compiled.metadata.num_warps,
        multiplies="wgmma" if "wgmma" in ptx else "mma" if "mma.sync" in ptx else "",
    )


def attention(dtype: torch.dtype, dim: int, score: Score, window: int | None, num_heads: int = 32) -> None:
    kernels, num_sequences, num_kv_heads = TritonKernels(), 16, 8
    pool = torch.zeros(64, num_kv_heads, 32, 2, dim, dtype=dtype)
    query = torch.zeros(num_sequences, num_heads + 2 * num_kv_heads, dim, dtype=dtype)[:, :num_heads]
    out = torch.zeros(num_sequences, num_heads, dim, dtype=dtype)
    tables, num_keys, starts = ints(num_sequences, 65), ints(num_sequences), ints(num_sequences + 1)
    scratch = kernels.decode_scratch(num_sequences, num_heads, num_kv_heads, dim, HOST)
    kernels.attend_decodes(query, pool, tables, num_keys, out, scratch, score=score, window=window)
    for num_decodes in (0, 1):
        chunks = query[num_decodes:], pool, tables[num_decodes:], starts, num_keys[num_decodes:], out[num_decodes:]
        kernels.attend_chunks(*chunks, score=score, window=window)


def storing(dtype: torch.dtype, dim: int, turned: int, with_norms: bool) -> None:
    qkv, pool = torch.zeros(16, 48, dim, dtype=dtype), torch.zeros(64, 8, 32, 2, dim, dtype=dtype)
    angles, weight = torch.zeros(16, turned), torch.zeros(dim, dtype=dtype)
    norms = HeadNorms(weight, weight, 1e-6, from_one=False) if with_norms else None
    TritonKernels().rotate_and_store(qkv, angles, angles, torch.zeros(16, dtype=torch.int64), pool, norms)


def rows(dtype: torch.dtype, dim: int) -> None:
    kernels, x, weight = TritonKernels(), torch.zeros(4, dim, dtype=dtype), torch.zeros(dim, dtype=dtype)
    for from_one in (False, True):
        kernels.rms_norm(x, weight, x, eps=1e-6, from_one=from_one)
        kernels.add_rms_norm(x, x, weight, x, eps=1e-6, from_one=from_one)
        kernels.rms_norm_add(x, x, weight, eps=1e-6, from_one=from_one)
    kernels.silu_and_multiply(torch.zeros(4, 2 * dim, dtype=dtype), x)
    kernels.gelu_and_multiply(torch.zeros(4, 2 * dim, dtype=dtype), x)


def sampling(dtype: torch.dtype, vocab_size: int) -> None:
    kernels = TritonKernels()
    scratch, tokens = kernels.sample_scratch(2, vocab_size, HOST), torch.zeros(2, dtype=torch.int64)
    kernels.sample(torch.zeros(2, vocab_size, dtype=dtype), draw_rows([None] * 2), tokens, scratch)


def blocks(num_words: int) -> None:
    kernels, words, table = TritonBlocks(), ints(2, 8, 8, 32, num_words), ints(8)
    piece = LandedPiece(range(2), range(4), TokenRange(0, 200), 64, 4)
    kernels.copy_in(Landed(ints(2, 4, 8, 64, num_words)), words, piece, table)
    kernels.digest(words, range(2), TokenRange(0, 200), table)


def ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


BF16, F32 = torch.bfloat16, torch.float32
PLAIN, CAPPED = Score(), Score(cap=50.0)
USUAL: dict[str, Callable[[], None]] = {
    "attention": lambda: attention(BF16, 128, PLAIN, None),
    "storing": lambda: storing(BF16, 128, 128, with_norms=True),
    "rows": lambda: rows(BF16, 4096),
    "sampling": lambda: sampling(BF16, 128_256),
    "blocks": lambda: blocks(128),
}
ALL: dict[str, Callable[[], None]] = {
    **USUAL,
    **{
        f"attention of {dtype} heads of {dim}, {score}, {window}": lambda dtype=dtype, dim=dim, score=score, window=window: (
            attention(dtype, dim, score, window)
        )
        for dtype in (BF16, F32)
        for dim in (64, 80, 96, 128, 256)
        for score, window in ((PLAIN, None), (CAPPED, 4096))
    },
    **{
        f"attention of {heads} heads": lambda heads=heads: attention(BF16, 128, PLAIN, None, heads)
        for heads in (8, 24, 64, 160)
    },
    **{
        f"storing {dtype} heads of {dim}, {turned} turned": lambda dtype=dtype, dim=dim, turned=turned: storing(
            dtype, dim, turned, with_norms=dim != 96
        )
        for dtype in (BF16, F32)
        for dim, turned in ((64, 64), (80, 32), (96, 96), (256, 256))
    },
    **{
        f"rows of {dim} {dtype}": lambda dim=dim, dtype=dtype: rows(dtype, dim)
        for dtype in (BF16, F32)
        for dim in (576, 1024, 5376, 8192)
    },
    "sampling from float32": lambda: sampling(F32, 151_936),
    **{f"blocks of {words} words": lambda words=words: blocks(words) for words in (32, 80, 512)},
}


def main(cases: dict[str, Callable[[], None]]) -> None:
    driver.set_active(AbsentH200())
    launches._names = lambda device: ("NVIDIA H200", "sm_90")
    run = JITFunction.run
    for case, launch in cases.items():
        JITFunction.run = telling(case, run)
        launch()


def telling(case: str, run: Callable[..., Any]) -> Callable[..., None]:
    """Return what compiles a kernel as `run` would, and prints what it needs instead of launching it."""

    def compile_and_tell(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        print(json.dumps(asdict(needs_of(case, run(self, *args, grid=grid, warmup=True, **kwargs)))), flush=True)

    return compile_and_tell


if __name__ == "__main__":
    # Triton 3.9 warns where nobody says what is to be fused.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    main(ALL if "--all" in sys.argv else USUAL)
