"""The images' recipes: they pass a linter, run as nobody, agree about versions, and their steps work in a clean place."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
RECIPES = sorted(DOCKER.glob("*.Dockerfile"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
each_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)


def steps(recipe: Path) -> list[str]:
    """Return what the build stage runs."""
    text = recipe.read_text().replace("\\\n", " ")
    return re.findall(r"^RUN (.*)$", text.split("\nFROM ")[1], re.MULTILINE)


def test_there_is_one_for_each_image_of_the_chart() -> None:
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "twostep" / "values.yaml").read_text())
    images = {values["images"][key]["repository"] for key in ("router", "node", "nodeCpu")}
    assert images == {f"twostep-{recipe.stem}" for recipe in RECIPES}


@pytest.mark.processes
def test_the_linter_has_nothing_to_say() -> None:
    command = [str(Path(sys.executable).with_name("hadolint")), "--failure-threshold=warning", "--no-color", *map(str, RECIPES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, re.findall(r".*(?:warning|error).*", done.stdout)) == (0, []), done.stdout


@each_recipe
def test_it_runs_as_nobody_from_a_pinned_base_with_no_model_inside(recipe: Path) -> None:
    text = recipe.read_text()
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert re.search(r"^ARG PYTHON=python:3\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    assert "models pull" not in text
    assert all("--no-cache-dir" in step for step in steps(recipe) if "pip" in step)
    assert all("--constraint constraints.txt" in step for step in steps(recipe) if "pip install" in step)


def test_package_chart_and_images_have_one_version() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "twostep" / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == VERSION
    assert all(f"ARG VERSION={VERSION}\n" in recipe.read_text() for recipe in RECIPES)


def test_the_context_holds_what_the_wheel_is_built_from_and_nothing_else() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert kept == {*wheel["only-include"], "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "deploy/docker"}


def test_the_release_builds_every_image() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())
    matrix = workflow["jobs"]["images"]["strategy"]["matrix"]["image"]
    assert set(matrix) == {recipe.stem for recipe in RECIPES}


USES = {
    "router": "import twostep.router.serve, kubernetes.aio.config, sys; assert 'torch' not in sys.modules",
    "node-cpu": "import gguf, torch, twostep.decode_node.program, twostep.prefill_node.program, twostep.engine.torch_runner",
}


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("image", USES)
def test_every_step_works_in_a_clean_place(image: str, tmp_path: Path) -> None:
    """With pip's own settings of whoever runs it, as the recipe would be built with theirs."""
    source = tmp_path / "src"
    ignored = shutil.ignore_patterns("__pycache__")
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            given = ROOT / line[1:]
            copy = shutil.copytree if given.is_dir() else shutil.copy
            (source / line[1:]).parent.mkdir(parents=True, exist_ok=True)
            copy(given, source / line[1:], **({"ignore": ignored} if given.is_dir() else {}))
    venv.create(tmp_path / "base", with_pip=True)
    environment = {
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_") or name == "HOME"},
        "PATH": f"{tmp_path / 'base' / 'bin'}:/usr/bin:/bin",
        "VERSION": VERSION,
    }
    for step in steps(DOCKER / f"{image}.Dockerfile"):
        here = step.replace("/wheels", str(tmp_path / "wheels")).replace("/opt/twostep", str(tmp_path / "twostep"))
        done = subprocess.run(["sh", "-c", here], cwd=source, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{here}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    python = tmp_path / "twostep" / "bin" / "python"
    subprocess.run([python, "-c", USES[image]], check=True, cwd=tmp_path)
    subprocess.run([python.with_name("twostep"), "doctor", "--help"], check=True, capture_output=True, cwd=tmp_path)
