"""What memory a runner may take, and whether weights and KV cache fit into it."""

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

    def require_fit(self) -> None:
        """Raise ConfigError, naming all three, unless weights and KV fit into what is available."""
        if self.weights + self.kv > self.available:
            raise ConfigError(
                f"weights ({self.weights // MIB} MiB) and engine.kv_bytes ({self.kv // MIB} MiB) do not fit into the "
                f"{self.available // MIB} MiB of memory available: lower engine.kv_bytes"
            )


def available_host_bytes(root: Path = Path("/")) -> int:
    """Return how much more memory this process may take: the machine's, or its cgroup's where that is less."""
    machine = _meminfo(root / "proc/meminfo")
    cgroup = _cgroup_left(root / "sys/fs/cgroup")
    return machine if cgroup is None else min(machine, cgroup)


def _meminfo(path: Path) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError(f"{path} does not say how much memory is available")


def _cgroup_left(folder: Path) -> int | None:
    """Return limit minus use of the cgroup (version 2, else version 1), or None where there is no limit."""
    for limit, used, stat in (
        (folder / "memory.max", folder / "memory.current", folder / "memory.stat"),
        (folder / "memory/memory.limit_in_bytes", folder / "memory/memory.usage_in_bytes", folder / "memory/memory.stat"),
    ):
        if limit.is_file() and used.is_file() and limit.read_text(encoding="ascii").strip() != "max":
            in_use = int(used.read_text(encoding="ascii")) - _reclaimable(stat)
            return max(0, int(limit.read_text(encoding="ascii")) - in_use)
    return None


def _reclaimable(stat: Path) -> int:
    """Return the page cache that the kernel gives back under pressure: freshly read weights count there too."""
    if not stat.is_file():
        return 0
    for line in stat.read_text(encoding="ascii").splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0
