"""A program beside a replica leaves its log behind where that has more to say than its last line, and nothing else ever."""

import tempfile
from pathlib import Path

import pytest

from twostep.cli.child import ChildEnded
from twostep.core.errors import ConfigError
from twostep.deploy.ray import node_replica, router_replica
from twostep.deploy.ray.config import AppConfig
from twostep.deploy.ray.hosted import HostedProgram
from twostep.deploy.ray.node_replica import NodeReplica
from twostep.deploy.ray.plan import plan_node, plan_router
from twostep.deploy.ray.router_replica import RouterReplica

pytestmark = pytest.mark.processes


class Node(NodeReplica):
    """One whose end nobody waits for."""

    def __del__(self) -> None:  # type: ignore[override]
        """Serve is not here."""


class Router(RouterReplica):
    """One whose end nobody waits for."""

    def __del__(self) -> None:  # type: ignore[override]
        """Serve is not here."""


class Nobody:
    """A pool without replicas."""

    def broadcast(self, method: str) -> "Nobody":
        return self

    async def results_async(self, **options: object) -> list[object]:
        return []


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let replicas be made without Serve."""
    for module in (node_replica, router_replica):
        monkeypatch.setattr(module, "require_serve_agrees", lambda *args, **kwargs: None)
        monkeypatch.setattr(module, "replica_name", lambda role: f"{role}-1")
    monkeypatch.setattr(node_replica, "machine_address", lambda: "127.0.0.1")


def left(folder: Path) -> list[str]:
    """Return the names of the files that are left."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


async def test_a_program_that_cannot_start_as_told_leaves_nothing_but_its_words(temporary: Path) -> None:
    with pytest.raises(ChildEnded, match="unknown key no_such_key"):
        await HostedProgram.start("r", "twostep.router", {"no_such_key": 1})
    assert left(temporary) == []


async def test_a_program_that_breaks_leaves_its_log(temporary: Path) -> None:
    with pytest.raises(ChildEnded, match="its log, "):
        await HostedProgram.start("r", "twostep.no_such_module", {})
    assert left(temporary) == ["r.log", "r.yaml"]


@pytest.mark.usefixtures("serve")
async def test_a_node_that_cannot_load_its_model_leaves_nothing_but_its_words(temporary: Path) -> None:
    plan = plan_node("decode", AppConfig(), {"decode": {"model": "fake:colour=red"}})
    with pytest.raises(ChildEnded, match="unknown key colour"):
        await Node.__init__(Node.__new__(Node), plan)
    assert left(temporary) == []


@pytest.mark.usefixtures("serve")
async def test_a_router_that_cannot_start_as_told_leaves_nothing_but_its_words(temporary: Path) -> None:
    plan = plan_router(AppConfig(), {"router": {"model": "no/such/model"}})
    with pytest.raises(ConfigError, match="no/such/model"):
        await Router.__init__(Router.__new__(Router), plan, Nobody(), Nobody())  # type: ignore[arg-type]
    assert left(temporary) == []
