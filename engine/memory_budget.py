"""What memory a runner may take, what its parts need of it, and how much of it the KV cache gets."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from twostep.core.errors import ConfigError

MIB = 1 << 20
RESERVE = 0.05
"""The share of the memory that is left to what nobody counts."""
REST: Literal["rest"] = "rest"


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that are taken whatever the KV cache gets.

    By weights, by what a step computes with, by the landing pool, and by captured steps.
    """

    weights: int
    workspace: int
    landing: int = 0
    graphs: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.workspace + self.landing + self.graphs

    def __str__(self) -> str:
        parts = {"landing pool": self.landing, "graphs": self.graphs}
        more = "".join(f", {name} {_mib(num_bytes)}" for name, num_bytes in parts.items() if num_bytes)
        return f"weights {_mib(self.weights)}, workspace {_mib(self.workspace)}{more}"


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Where the memory goes that was available before anything was loaded."""

    needs: Needs
    kv: int
    available: int

    def by_use(self) -> Mapping[str, int]:
        """Return the bytes that each use takes, and those that are free."""
        parts = {**asdict(self.needs), "kv": self.kv}
        return {**parts, "free": self.available - sum(parts.values())}

    def __str__(self) -> str:
        left = self.available - self.needs.total - self.kv
        return f"{self.needs}, KV {_mib(self.kv)}, left {_mib(left)} of {_mib(self.available)}"


def plan_memory(kv_bytes: int | Literal["rest"], block_bytes: int, needs: Needs, available: int) -> MemoryLedger:
    """Return how the available memory is divided; the KV cache gets whole blocks.

    Raises ConfigError, naming all sizes and what could be changed, when it does not suffice, or holds no block.
    """
    rest = available - needs.total
    if rest < block_bytes:
        raise ConfigError(
            f"{_mib(available)} of memory are available, and {needs} leave no room for a KV cache: "
            "give this process more memory, or lower engine.token_budget, engine.max_batch or landing_bytes"
        )
    wanted = int(rest - RESERVE * available) if kv_bytes == REST else kv_bytes
    kv = wanted // block_bytes * block_bytes
    if kv <= 0:
        raise ConfigError(f"engine.kv_bytes = {kv_bytes} is less than one block, which takes {block_bytes} bytes")
    if kv > rest:
        raise ConfigError(
            f"engine.kv_bytes ({_mib(kv)}) does not fit: of {_mib(available)} of memory available, {needs} leave {_mib(rest)}: "
            f"lower it to {rest} or less, or set it to `rest`"
        )
    return MemoryLedger(needs, kv, available)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes // MIB} MiB"


def available_host_bytes(root: Path = Path("/")) -> int:
    """Return how much more memory this process may take: the machine's, or that of a cgroup around it where it is less."""
    return min([_machine_left(root / "proc/meminfo"), *(limit.left() for limit in _cgroup_limits(root))])


def _machine_left(meminfo: Path) -> int:
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError(f"{meminfo} does not say how much memory is available")


@dataclass(frozen=True, slots=True)
class _CgroupLimit:
    """The files of one cgroup with a limit, of version 1 or 2."""

    limit: Path
    used: Path
    stat: Path

    def left(self) -> int:
        in_use = int(self.used.read_text(encoding="ascii")) - self._reclaimable()
        return max(0, int(self.limit.read_text(encoding="ascii")) - in_use)

    def _reclaimable(self) -> int:
        """Return the page cache that the kernel gives back under pressure: files just read count as used, too."""
        sizes = dict(line.split() for line in self.stat.read_text(encoding="ascii").splitlines())
        return int(sizes.get("total_inactive_file", sizes.get("inactive_file", 0)))


def _cgroup_limits(root: Path) -> Iterator[_CgroupLimit]:
    """Yield the limits of this process's cgroup and of those around it."""
    groups = root / "proc/self/cgroup"
    for line in groups.read_text(encoding="ascii").splitlines() if groups.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            yield from _limits_upwards(root / "sys/fs/cgroup/memory", path, "limit_in_bytes", "usage_in_bytes")
        elif not controllers:
            yield from _limits_upwards(root / "sys/fs/cgroup", path, "max", "current")


def _limits_upwards(mount: Path, path: str, limit: str, used: str) -> Iterator[_CgroupLimit]:
    # Inside a container the path may be the host's, unknown here: the mount itself is then the container's cgroup.
    for folder in (mount, *(mount / part for part in _prefixes(path))):
        files = _CgroupLimit(folder / f"memory.{limit}", folder / f"memory.{used}", folder / "memory.stat")
        if files.limit.is_file() and files.used.is_file() and files.limit.read_text(encoding="ascii").strip() != "max":
            yield files


def _prefixes(path: str) -> list[Path]:
    """Return `a`, `a/b`, `a/b/c` for `/a/b/c`."""
    whole = Path(path.strip("/"))
    return [parent for parent in (*reversed(whole.parents), whole) if parent != Path()]
