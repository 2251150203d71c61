"""What a wheel brings, what an installation needs, and that what is pinned and generated is current."""

import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from twostep.tests.kv_transfer.needs_ucx import needs_ucx

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]


def closure(requirements: list[str]) -> dict[str, Distribution]:
    """Return every installed distribution that `requirements` need, by canonical name."""
    found: dict[str, Distribution] = {}
    seen: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        key = f"{name}[{','.join(sorted(wanted.extras))}]"
        if key not in seen:
            seen.add(key)
            found[name] = distribution(name)
            waiting.extend(needed for needed in map(Requirement, found[name].requires or []) if applies(needed, wanted.extras))
    return found


def applies(needed: Requirement, extras: set[str]) -> bool:
    return needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras or {""})


def pinned(file: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def test_every_package_that_node_and_dev_install_is_pinned_to_what_is_installed() -> None:
    extras = PROJECT["optional-dependencies"]
    needed = closure([*PROJECT["dependencies"], *extras["node"], *extras["dev"]])
    installed = {name: found.version.partition("+")[0] for name, found in needed.items()}
    assert {name: pinned().get(name) for name in installed} == installed
    assert pinned().keys() == installed.keys()


@needs_ucx
def test_every_package_that_ucx_adds_is_pinned_beside_them() -> None:
    added = closure(PROJECT["optional-dependencies"]["ucx"])
    assert {name: found.version for name, found in added.items() if name not in pinned()} == pinned("constraints-ucx.txt")


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-ucx.txt"])
def test_every_pin_is_exact_and_without_a_local_version(file: str) -> None:
    lines = (ROOT / file).read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"#.*|[\w.-]+==[\w.]+", line)] == []


def test_torch_2_11_and_python_3_12_are_admitted() -> None:
    torch = [Requirement(text) for text in PROJECT["optional-dependencies"]["node"] if text.startswith("torch")]
    assert all("2.11.0" in wanted.specifier and "2.14.1" in wanted.specifier for wanted in torch)
    assert PROJECT["requires-python"] == ">=3.11"


def test_a_stale_generated_module_is_noticed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    stale = tmp_path / "proto" / "handoff_pb2.py"
    stale.write_text(stale.read_text() + "# edited by hand\n")
    command = ["bash", str(tmp_path / "proto" / "generate.sh"), "--check"]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "proto/handoff_pb2.py is stale: run make proto\n")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A virtual environment with our wheel and the dependencies of the base install, and nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    venv.create(folder / "venv", symlinks=True)
    (folder / "before").write_text("\n".join(entries(folder / "venv")))
    install = ["install", "--no-deps", "--no-index", str(folder / f"twostep-{VERSION}-py3-none-any.whl")]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python(folder)), *install], check=True, capture_output=True)
    (folder / "after").write_text("\n".join(entries(folder / "venv")))
    link_dependencies(folder / "dependencies")
    (site_packages(folder / "venv") / "dependencies.pth").write_text(f"{folder / 'dependencies'}\n")
    yield folder
    shutil.rmtree(folder)


def site_packages(environment: Path) -> Path:
    return next(environment.glob("lib/python*/site-packages"))


def python(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def entries(environment: Path) -> list[str]:
    return sorted(
        f"{place.name}/{path.name}" for place in (site_packages(environment), environment / "bin") for path in place.iterdir()
    )


def link_dependencies(folder: Path) -> None:
    """Fill `folder` with links to the installed base dependencies, so that a test needs neither network nor time."""
    folder.mkdir()
    for found in closure(PROJECT["dependencies"]).values():
        for top in {path.parts[0] for path in found.files or [] if path.parts[0] not in ("..", "__pycache__")}:
            link = folder / top
            if not link.exists():
                link.symlink_to(str(found.locate_file(top)))


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env={"PATH": str(python(folder).parent)}, capture_output=True, text=True, check=False
    )


@pytest.mark.processes
def test_the_wheel_adds_only_twostep_and_its_command(clean: Path) -> None:
    before, after = ((clean / name).read_text().splitlines() for name in ("before", "after"))
    added = {"bin/twostep", "site-packages/twostep", f"site-packages/twostep-{VERSION}.dist-info"}
    assert set(after) - set(before) == added


@pytest.mark.processes
def test_the_command_works_without_torch(clean: Path) -> None:
    assert run(clean, "python", "-c", "import torch").returncode != 0
    assert run(clean, "twostep", "--version").stdout == f"twostep {VERSION}\n"
    shown = run(clean, "twostep", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    for command in ("up", "chat", "models", "ledger", "demo"):
        assert command in shown.stdout


@pytest.mark.processes
def test_the_router_works_without_torch(clean: Path) -> None:
    assert run(clean, "python", "-c", "import twostep.router.__main__").stderr == ""
    shown = run(clean, "python", "-m", "twostep.router", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
