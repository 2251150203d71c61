"""The order in which a cluster starts and stops, with stand-ins for its programs."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from twostep.cli.child import ChildEnded, Program
from twostep.cli.cluster import ClusterPlan, NodeAddress, running
from twostep.cli.watch import Stopped, Watch

pytestmark = pytest.mark.processes

PROGRAMS = Path(__file__).parent / "programs"


def stand_in(name: str, folder: Path, **config: Any) -> Program:
    path = os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", "")])
    return Program(name, "stand_in", {"address_file": str(folder / f"{name}.json"), **config}, {"PYTHONPATH": path})


def node(name: str, folder: Path, **config: Any) -> Program:
    address = {"node": name, "grpc": f"{name}:1", "metrics": f"{name}:2", "incarnation": 7}
    return stand_in(name, folder, **{"end": "wait", "address": address, **config})


def cluster_plan(nodes: tuple[Program, ...], router: Program, folder: Path) -> ClusterPlan:
    return ClusterPlan(
        nodes=nodes,
        address_files={"prefill": (folder / "prefill-0.json",), "decode": (folder / "decode-0.json",)},
        router=router,
        router_address_file=folder / "router.json",
        router_drain_s=55.0,
    )


def healthy_nodes(folder: Path) -> tuple[Program, Program]:
    return node("prefill-0", folder), node("decode-0", folder)


async def test_a_cluster_is_there_once_the_router_says_that_it_is_ready(tmp_path: Path) -> None:
    reports: list[str] = []
    router = stand_in("router", tmp_path, end="wait", ready_after=2)
    watch = Watch()
    async with running(cluster_plan(healthy_nodes(tmp_path), router, tmp_path), tmp_path, watch, reports.append) as cluster:
        assert cluster.url.startswith("http://127.0.0.1:")
        assert cluster.grpc == "router:1"
        assert cluster.prefill == (NodeAddress("prefill-0", "prefill-0:1", "prefill-0:2"),)
        assert cluster.decode == (NodeAddress("decode-0", "decode-0:1", "decode-0:2"),)
    assert reports == [
        "nodes",
        "router",
        "decode-0:1: the model loads",
        "no pair of nodes has exchanged bytes yet",
    ]
    assert watch.farewells == []


async def test_the_router_is_told_where_the_nodes_listen(tmp_path: Path) -> None:
    router = stand_in("router", tmp_path, end="wait", ready_after=0)
    async with running(cluster_plan(healthy_nodes(tmp_path), router, tmp_path), tmp_path, Watch(), print):
        told = (tmp_path / "router.yaml").read_text()
    assert '"prefill": [\n    "prefill-0:1"\n  ]' in told
    assert '"decode": [\n    "decode-0:1"\n  ]' in told


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
async def test_a_node_that_cannot_start_ends_the_start_with_its_reason(name: str, tmp_path: Path) -> None:
    nodes = tuple(
        stand_in(known, tmp_path, end="config error") if known == name else node(known, tmp_path)
        for known in ("prefill-0", "decode-0")
    )
    router = stand_in("router", tmp_path, end="wait", ready_after=0)
    with pytest.raises(ChildEnded, match=f"^{name}: stand_in: port 80 is taken$"):
        await start_up(cluster_plan(nodes, router, tmp_path), tmp_path, Watch())
    assert not (tmp_path / "router.json").exists()


async def test_a_router_that_cannot_start_stops_the_nodes(tmp_path: Path) -> None:
    router = stand_in("router", tmp_path, end="config error")
    watch = Watch()
    with pytest.raises(ChildEnded, match=r"^router: stand_in: port 80 is taken$"):
        await start_up(cluster_plan(healthy_nodes(tmp_path), router, tmp_path), tmp_path, watch)
    assert {farewell.name for farewell in watch.farewells} <= {"router"}


async def test_a_start_that_takes_long_can_be_interrupted(tmp_path: Path) -> None:
    router = stand_in("router", tmp_path, end="wait", ready_after=1_000_000)
    watch = Watch()

    def interrupt(reason: str) -> None:
        if reason.endswith("the model loads"):
            watch.ask_to_stop(signal.SIGTERM)

    with pytest.raises(Stopped):
        await start_up(cluster_plan(healthy_nodes(tmp_path), router, tmp_path), tmp_path, watch, interrupt)


async def start_up(plan: ClusterPlan, folder: Path, watch: Watch, report: Any = print) -> None:
    async with running(plan, folder, watch, report):
        pytest.fail("the cluster must not become ready")
