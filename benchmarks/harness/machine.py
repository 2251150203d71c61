"""Says on what kind of machine a benchmark ran, without telling which one."""

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "triton", "numpy", "grpcio", "nixl-cu12", "nixl-cu13", "ucxx-cu12", "libucx-cu12")


def describe_machine() -> Mapping[str, str]:
    """Return processor, cores, memory and the versions of what the figures depend on."""
    return {
        "processor": _field(Path("/proc/cpuinfo"), "model name"),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{_memory_kib() >> 20} GiB",
        **({"GPU": ", ".join(gpus)} if (gpus := _gpus()) else {}),
        "system": platform.system(),
        "python": platform.python_version(),
        **{package: found for package in PACKAGES if (found := _version(package))},
    }


def _gpus(root: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    return [_field(file, "Model") for file in sorted(root.glob("*/information"))]


def _field(path: Path, name: str) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), platform.machine())


def _memory_kib() -> int:
    return int(_field(Path("/proc/meminfo"), "MemTotal").split()[0])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
