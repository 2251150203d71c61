"""Which instructions the CPU kernels can be compiled for, and which of them this machine has."""

import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """`cpu_flags` are what the processor must have, as Linux names them; `compiler_flags` make g++ use it."""

    name: str
    machine: str = ""
    cpu_flags: frozenset[str] = frozenset()
    compiler_flags: tuple[str, ...] = ()


AVX512_BF16 = InstructionSet(
    "avx512bf16",
    "x86_64",
    frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "fma"}),
    ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma"),
)
AVX2 = InstructionSet("avx2", "x86_64", frozenset({"avx2", "fma"}), ("-mavx2", "-mfma"))
PORTABLE = InstructionSet("portable")
INSTRUCTION_SETS = (AVX512_BF16, AVX2, PORTABLE)
"""The best one first."""


def available(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[InstructionSet]:
    """Return what this machine has, the best one first."""
    flags = _cpu_flags(cpuinfo)
    return [each for each in INSTRUCTION_SETS if each.machine in ("", platform.machine()) and each.cpu_flags <= flags]


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())
