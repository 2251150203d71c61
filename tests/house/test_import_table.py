"""The import table: which folder may import which, and what it never imports."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = frozenset({"starlette", "uvicorn", "fastapi", "httpx", "aiohttp", "requests"})
MODEL = frozenset({"torch", "transformers", "safetensors", "triton"})
RAY = frozenset({"ray"})
NIXL = frozenset({"nixl", "nixl_cu12", "nixl_cu13"})


@dataclass(frozen=True, slots=True)
class Folder:
    """`imports` are the folders of ours that it may import, itself aside; `never` are packages that it must not."""

    imports: frozenset[str]
    never: frozenset[str]


def folder(imports: str, never: frozenset[str]) -> Folder:
    return Folder(frozenset(imports.split()), never)


EVERYTHING = "core proto kv_transfer engine node prefill_node decode_node kube router autoscaler"
FOLDERS = {
    "core": folder("", WEB | MODEL | {"grpc"}),
    "proto": folder("core", WEB | MODEL),
    "kv_transfer": folder("core", WEB | MODEL | {"grpc"}),
    "engine": folder("core", WEB | {"grpc"}),
    "node": folder("core proto kv_transfer engine", WEB | MODEL),
    "prefill_node": folder("core proto kv_transfer engine node", WEB | MODEL),
    "decode_node": folder("core proto kv_transfer engine node", WEB | MODEL),
    "kube": folder("core", MODEL | {"grpc"}),
    "router": folder("core proto kube", MODEL),
    "autoscaler": folder("core proto kube", MODEL | {"grpc"}),
    "cli": folder(EVERYTHING, frozenset()),
    "deploy/ray": folder(f"{EVERYTHING} cli", MODEL | {"grpc"}),
    "benchmarks": folder(f"{EVERYTHING} cli deploy tests", frozenset()),
}
SHIPPED = [name for name in FOLDERS if name != "benchmarks"]
"""What a wheel brings."""

TOP_FOLDERS = {name.partition("/")[0] for name in FOLDERS}
"""Their names at the top of the repository, which nothing may be imported by."""

ROUTER_FOLDERS = (
    *("text", "discovery", "admission", "placement", "nodes", "requests"),
    *("front/openai", "front", "front/http", "front/grpc", "workers"),
)
"""The router's own folders: each imports none but those before it."""

GRPC_EDGES = frozenset(
    {
        *("proto/wire.py", "proto/rpc.py", "node/handoff_wire.py"),
        *("node/service.py", "prefill_node/service.py", "decode_node/service.py"),
        *("prefill_node/destination_client.py", "decode_node/source_client.py"),
        *("router/nodes/client.py", "cli/node_client.py"),
        *("router/front/grpc/api.py", "router/front/grpc/door.py", "router/front/grpc/wire.py"),
        "benchmarks/router_rows/mock_nodes.py",
    }
)
TRITON = ("triton", "triton.language")
GPU_KERNELS = frozenset(f"engine/kernels/gpu/{path.name}" for path in (ROOT / "engine" / "kernels" / "gpu").glob("*.py"))
GENERATED = [f"twostep.proto.{name}_pb2{kind}" for name in ("node", "handoff", "serving") for kind in ("", "_grpc")]
ONLY_IN = {
    **dict.fromkeys(NIXL, frozenset({"kv_transfer/nixl_transport.py"})),
    **dict.fromkeys(("ucxx", "ucxx._lib.libucxx", "ucxx._lib.arr"), frozenset({"kv_transfer/ucx_worker.py"})),
    **dict.fromkeys(GENERATED, GRPC_EDGES),
    "kubernetes": frozenset({"kube/api_server.py"}),
    # The benchmark of discovery measures the client's own watch as its peer.
    "kubernetes.aio": frozenset({"kube/api_server.py", "benchmarks/discovery_rows/watch.py"}),
    "kubernetes.aio.config": frozenset({"kube/api_server.py", "benchmarks/discovery_rows/watch.py"}),
    "yaml": frozenset({"core/config.py"}),
    **dict.fromkeys(TRITON, GPU_KERNELS),
}
"""Modules with few users. No file but a gRPC edge sees a wire type."""

LOADS_TORCH = ("engine/models/", "engine/layers/", "engine/kernels/", "engine/gpu/", "engine/identity.py")
"""Where torch is loaded, beside the files that import it themselves. Nothing else imports these before their work begins."""

FILES = sorted(path.relative_to(ROOT) for name in FOLDERS for path in (ROOT / name).rglob("*.py") if "_pb2" not in path.name)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@cache
def imported_modules(path: Path) -> frozenset[str]:
    """Return every dotted name that `path` may import, wherever in the file the import stands."""
    return frozenset(_imports(ast.parse((ROOT / path).read_text(), str(path))))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            yield from (str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def home(path: Path) -> Folder:
    return next(folder for name, folder in FOLDERS.items() if path.is_relative_to(name))


def packages(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in imported_modules(path)}


def _foreign_folders(path: Path) -> set[str]:
    ours = {module.split(".")[1] for module in imported_modules(path) if module.startswith("twostep.")}
    return ours - home(path).imports - {path.parts[0]}


def _router_folder(module: str) -> str:
    """Return in which of the router's folders a dotted name is, nothing for one beside them."""
    around = [name for name in ROUTER_FOLDERS if module.startswith(f"twostep.router.{name.replace('/', '.')}.")]
    return max(around, key=len, default="")


def _later_folders_of_the_router(path: Path) -> set[str]:
    own = _router_folder(".".join(("twostep", *path.with_suffix("").parts)))
    later = ROUTER_FOLDERS[ROUTER_FOLDERS.index(own) + 1 :] if own else ()
    return {_router_folder(module) for module in imported_modules(path)} & set(later)


def _used_without_leave(path: Path) -> set[str]:
    return {module for module in imported_modules(path) & ONLY_IN.keys() if path.as_posix() not in ONLY_IN[module]}


def offences(rule: Callable[[Path], set[str]]) -> dict[str, set[str]]:
    """Return what breaks the rule, by file."""
    return {path.as_posix(): broken for path in FILES if (broken := rule(path))}


def test_a_folder_imports_only_the_folders_that_the_table_allows() -> None:
    assert offences(_foreign_folders) == {}


def test_the_routers_folders_import_none_but_those_before_them() -> None:
    folders = {path.parts[1] for path in FILES if path.is_relative_to("router") and len(path.parts) > 2}
    assert folders == {name.partition("/")[0] for name in ROUTER_FOLDERS}
    assert offences(_later_folders_of_the_router) == {}


def test_a_folder_never_imports_what_the_table_forbids() -> None:
    assert offences(lambda path: packages(path) & home(path).never) == {}


def test_only_what_is_for_ray_imports_ray() -> None:
    assert {path.as_posix() for path in FILES if packages(path) & RAY and not path.is_relative_to("deploy/ray")} == set()


def test_modules_with_few_users_are_imported_by_no_others() -> None:
    assert offences(_used_without_leave) == {}


def test_our_folders_are_imported_under_twostep_and_never_relatively() -> None:
    assert offences(lambda path: packages(path) & {*TOP_FOLDERS, ""}) == {}


def test_the_wheel_the_type_checker_and_the_linter_know_every_room() -> None:
    tools = PYPROJECT["tool"]
    assert set(tools["hatch"]["build"]["targets"]["wheel"]["only-include"]) == set(SHIPPED)
    assert set(tools["mypy"]["packages"]) == {f"twostep.{name.replace('/', '.')}" for name in FOLDERS}
    assert set(tools["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) == TOP_FOLDERS


@pytest.mark.processes
@pytest.mark.parametrize("folder", SHIPPED)
def test_a_fresh_interpreter_loads_no_torch_until_a_model_is_run(folder: str) -> None:
    here = [path for path in FILES if path.is_relative_to(folder) and path.stem != "__main__"]
    paths = [path for path in here if "torch" not in packages(path) and not path.as_posix().startswith(LOADS_TORCH)]
    modules = [".".join(("twostep", *path.with_suffix("").parts)) for path in paths]
    program = f"import {', '.join(['sys', *modules])}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
