"""Which instructions the CPU kernels can be compiled for, and which of them this machine has."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """`cpu_flags` are what the processor must have, as Linux names them; `compiler_flags` make g++ use it."""

    name: str
    machine: str = ""
    cpu_flags: frozenset[str] = frozenset()
    compiler_flags: tuple[str, ...] = ()


AVX512 = InstructionSet(
    "avx512",
    "x86_64",
    frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"}),
    ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"),
)
AVX512_BF16 = InstructionSet(
    "avx512bf16", "x86_64", AVX512.cpu_flags | {"avx512_bf16"}, (*AVX512.compiler_flags, "-mavx512bf16")
)
AMX = InstructionSet(
    "amx",
    "x86_64",
    AVX512_BF16.cpu_flags | {"amx_tile", "amx_bf16"},
    (*AVX512_BF16.compiler_flags, "-mamx-tile", "-mamx-bf16"),
)
AVX2 = InstructionSet("avx2", "x86_64", frozenset({"avx2", "fma"}), ("-mavx2", "-mfma"))
PORTABLE = InstructionSet("portable")
INSTRUCTION_SETS = (AMX, AVX512_BF16, AVX512, AVX2, PORTABLE)
"""The best one first, on most processors."""


def available(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[InstructionSet]:
    """Return what this machine has, the best one first."""
    facts = _facts(cpuinfo)
    flags = frozenset(facts.get("flags", "").split())
    found = [each for each in INSTRUCTION_SETS if each.machine in ("", platform.machine()) and each.cpu_flags <= flags]
    # Intel's cores since Sapphire Rapids are to multiply bfloat16 with AMX, which many virtual machines hide; they dissolve a
    # product of pairs into the work of four of float32: measured on one of the fifth generation, 87 against 179 GFLOP/s.
    if facts.get("vendor_id") == "GenuineIntel" and "avx512_fp16" in flags:
        found.sort(key=lambda each: each not in (AMX, AVX512))
    return found


def _facts(cpuinfo: Path) -> Mapping[str, str]:
    """Return what the system says of the first core."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
