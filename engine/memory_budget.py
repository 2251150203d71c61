"""What memory a runner may take, and whether weights and KV cache fit into it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twostep.core.errors import ConfigError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Bytes of the device that the parts of a runner take, and bytes that were available before."""

    weights: int
    kv: int
    available: int

    def __str__(self) -> str:
        return f"weights {self.weights // MIB} MiB, KV {self.kv // MIB} MiB, available {self.available // MIB} MiB"

    def require_fit(self) -> None:
        """Raise ConfigError, naming all three, unless weights and KV fit into what is available."""
        if self.weights + self.kv > self.available:
            raise ConfigError(
                f"weights ({self.weights // MIB} MiB) and engine.kv_bytes ({self.kv // MIB} MiB) do not fit into the "
                f"{self.available // MIB} MiB of memory available: lower engine.kv_bytes"
            )


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
