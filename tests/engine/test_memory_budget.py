"""Available memory is the machine's, or that of the tightest cgroup around the process."""

from pathlib import Path

import pytest

from twostep.core.errors import ConfigError
from twostep.engine.memory_budget import MIB, MemoryLedger, available_host_bytes


def machine(root: Path, available_mib: int, cgroup: str = "0::/\n") -> Path:
    put(root, "proc/meminfo", f"MemTotal: 99999999 kB\nMemAvailable: {available_mib * 1024} kB\n")
    put(root, "proc/self/cgroup", cgroup)
    return root


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def limit(root: Path, folder: str, limit_mib: int | str, used_mib: int, cache_mib: int = 0) -> None:
    """A cgroup of version 2."""
    put(root, f"{folder}/memory.max", f"{limit_mib if isinstance(limit_mib, str) else limit_mib * MIB}\n")
    put(root, f"{folder}/memory.current", f"{used_mib * MIB}\n")
    put(root, f"{folder}/memory.stat", f"anon 1\ninactive_file {cache_mib * MIB}\nfile 3\n")


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    limit(machine(tmp_path, 1000), "sys/fs/cgroup", "max", 5)
    assert available_host_bytes(tmp_path) == 1000 * MIB


def test_a_containers_limit_counts_less_what_is_used_and_cannot_be_given_back(tmp_path: Path) -> None:
    limit(machine(tmp_path, 1000), "sys/fs/cgroup", 400, used_mib=150, cache_mib=50)
    assert available_host_bytes(tmp_path) == 300 * MIB


def test_the_tightest_cgroup_upwards_counts(tmp_path: Path) -> None:
    machine(tmp_path, 1000, cgroup="0::/jobs/one\n")
    limit(tmp_path, "sys/fs/cgroup/jobs", 300, used_mib=100)
    limit(tmp_path, "sys/fs/cgroup/jobs/one", 900, used_mib=100)
    assert available_host_bytes(tmp_path) == 200 * MIB


def test_version_1_has_other_names(tmp_path: Path) -> None:
    machine(tmp_path, 1000, cgroup="4:memory:/jobs\n1:cpu:/\n")
    put(tmp_path, "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", str(500 * MIB))
    put(tmp_path, "sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", str(450 * MIB))
    put(tmp_path, "sys/fs/cgroup/memory/jobs/memory.stat", f"cache 1\ninactive_file 0\ntotal_inactive_file {20 * MIB}\n")
    assert available_host_bytes(tmp_path) == 70 * MIB


def test_a_limit_already_passed_leaves_nothing(tmp_path: Path) -> None:
    limit(machine(tmp_path, 1000), "sys/fs/cgroup", 100, used_mib=120)
    assert available_host_bytes(tmp_path) == 0


def test_what_does_not_fit_is_refused_with_all_sizes() -> None:
    MemoryLedger(weights=MIB, kv=2 * MIB, available=3 * MIB).require_fit()
    with pytest.raises(ConfigError, match=r"weights \(1 MiB\) and engine.kv_bytes \(3 MiB\) .* 3 MiB of memory"):
        MemoryLedger(weights=MIB, kv=3 * MIB, available=3 * MIB).require_fit()
