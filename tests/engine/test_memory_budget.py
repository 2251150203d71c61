"""Available memory is the machine's, or that of the tightest cgroup around the process."""

from pathlib import Path
from typing import Any

import pytest

from twostep.core.errors import ConfigError
from twostep.engine.memory_budget import MIB, MemoryLedger, Needs, available_host_bytes, plan_memory


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


NEEDS = Needs(weights=10 * MIB, workspace=5 * MIB, landing=5 * MIB)


def test_what_is_asked_for_is_given_in_whole_blocks() -> None:
    ledger = plan_memory(8 * MIB + 5, MIB, NEEDS, available=100 * MIB)
    assert ledger == MemoryLedger(NEEDS, kv=8 * MIB, available=100 * MIB)
    told = "weights 10 MiB, workspace 5 MiB, landing pool 5 MiB, KV 8 MiB, left 72 MiB of 100 MiB"
    assert str(ledger) == told


def test_the_rest_is_what_the_others_leave_less_a_reserve() -> None:
    assert plan_memory("rest", MIB, NEEDS, available=100 * MIB).kv == 75 * MIB
    assert plan_memory("rest", 10 * MIB, NEEDS, available=100 * MIB).kv == 70 * MIB


def test_a_cache_that_fits_exactly_is_given() -> None:
    assert plan_memory(80 * MIB, MIB, NEEDS, available=100 * MIB).kv == 80 * MIB


def test_a_cache_that_does_not_fit_is_refused_with_all_sizes_and_the_largest_that_does() -> None:
    sizes = "weights 10 MiB, workspace 5 MiB, landing pool 5 MiB leave 80 MiB"
    told = rf"engine.kv_bytes \(81 MiB\) does not fit: of 100 MiB of memory available, {sizes}: lower it to {80 * MIB} or less"
    with pytest.raises(ConfigError, match=told):
        plan_memory(81 * MIB, MIB, NEEDS, available=100 * MIB)


@pytest.mark.parametrize("kv_bytes", [MIB, "rest"])
def test_a_model_that_leaves_no_room_is_refused_with_what_could_be_changed(kv_bytes: Any) -> None:
    told = "20 MiB of memory are available, and weights 10 MiB, .* leave no room for a KV cache: give this process more memory"
    with pytest.raises(ConfigError, match=told):
        plan_memory(kv_bytes, MIB, NEEDS, available=20 * MIB)


@pytest.mark.parametrize(("kv_bytes", "available_mib"), [(MIB - 1, 100), ("rest", 21)])
def test_a_cache_of_no_block_is_refused(kv_bytes: Any, available_mib: int) -> None:
    with pytest.raises(ConfigError, match=f"engine.kv_bytes = {kv_bytes} is less than one block, which takes {MIB} bytes"):
        plan_memory(kv_bytes, MIB, NEEDS, available=available_mib * MIB)


def test_the_ledger_accounts_for_all_memory() -> None:
    ledger = plan_memory(30 * MIB, 1 * MIB, NEEDS, 100 * MIB)
    by_use = {"weights": 10, "workspace": 5, "landing": 5, "graphs": 0, "kv": 30, "free": 50}
    assert ledger.by_use() == {use: mib * MIB for use, mib in by_use.items()}
