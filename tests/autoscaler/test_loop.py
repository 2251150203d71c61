"""The loop: what it does with what it sees, and what it does not do while it cannot look or may not act."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest

from twostep.autoscaler.apply import Apply
from twostep.autoscaler.config import AutoscalerConfig
from twostep.autoscaler.election import Election
from twostep.autoscaler.explain import sentences
from twostep.autoscaler.kubernetes_api import Lease
from twostep.autoscaler.look import Look
from twostep.autoscaler.loop import Autoscaler
from twostep.autoscaler.metrics import AutoscalerMetrics
from twostep.autoscaler.scrape import Scraper
from twostep.core.status_page import Vitals
from twostep.kube.errors import ApiError
from twostep.node.metrics import NodeMetrics
from twostep.router.metrics import Metrics
from twostep.tests.autoscaler.fake_api import START, FakeApi, pod_json
from twostep.tests.autoscaler.scenes import config


class Programs:
    """What answers at /metrics: one router, and nodes by port; a port that is `silent` does not."""

    def __init__(self) -> None:
        self.router = Metrics()
        self.nodes = {port: node_page() for port in range(7000, 7020)}
        self.silent: set[int] = set()

    def answer(self, request: httpx.Request) -> httpx.Response:
        port = request.url.port
        if port in self.silent or port is None:
            raise httpx.ConnectError("refused")
        page = self.router.render() if port == 8000 else generate_latest(self.nodes[port].registry)
        return httpx.Response(200, content=page)


def node_page() -> NodeMetrics:
    metrics = NodeMetrics()
    metrics.observe("kv_blocks", "Blocks.", "state", lambda: {"free": 90, "cached": 5, "referenced": 5})
    metrics.observe_value("queue_length", "Queue.", lambda: 0)
    return metrics


@dataclass(slots=True)
class Scene:
    """Three prefill nodes and two decode nodes, and an autoscaler that acts. `pass_s` lets time pass."""

    api: FakeApi
    programs: Programs
    autoscaler: Autoscaler
    election: Election
    metrics: AutoscalerMetrics
    vitals: Vitals
    now_s: float = 0.0

    async def look(self, *, after_s: float = 15.0, requests: int = 0, tokens: int = 500) -> float:
        self.now_s += after_s
        for _ in range(requests):
            self.programs.router.arrived_tokens.observe(tokens)
            self.programs.router.ttft.observe(0.5)
            self.programs.router.completion_tokens.inc(100)
        await self.election.look()
        return await self.autoscaler.step()

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"twostep_autoscaler_{name}", labels)


@asynccontextmanager
async def scene(**settings: Any) -> AsyncIterator[Scene]:
    given: AutoscalerConfig = config(**settings)
    programs, metrics, vitals = Programs(), AutoscalerMetrics(), Vitals(stuck_s=60)
    router = pod_json("router", port=8000)
    router["spec"]["containers"][0]["ports"][0]["name"] = "http"
    pods = {
        "role=prefill": [pod_json(f"p{index}", port=7000 + index) for index in range(3)],
        "role=decode": [pod_json(f"d{index}", port=7010 + index) for index in range(2)],
        "role=router": [router],
    }
    api = FakeApi({"twostep-prefill": 3, "twostep-decode": 2}, pods)

    def clock() -> float:
        return here.now_s

    def wall() -> datetime:
        return START + timedelta(seconds=1000 + here.now_s)

    async with httpx.AsyncClient(transport=httpx.MockTransport(programs.answer)) as http:
        election = Election(api, "me", 30, clock, wall)
        look = Look(api, Scraper(http), Scraper(http), given, clock, wall)
        autoscaler = Autoscaler(look, Apply(api, given, wall), election, given, metrics, vitals)
        here = Scene(api, programs, autoscaler, election, metrics, vitals)
        yield here


async def test_more_requests_bring_more_nodes_and_an_event_says_why() -> None:
    async with scene() as here:
        await here.look()
        await here.look(requests=150)
        assert here.api.done == ["twostep-prefill 6"]
        [(pool, note)] = here.api.notes
        assert (pool, note.reason, note.is_warning) == ("twostep-prefill", "ScaledUp", False)
        assert note.message.startswith("from 3 to 6 prefill nodes: 5000 uncached tokens/s, 1000 a node, TTFT 2 s;")
        assert here.metric("changes_total", role="prefill", direction="up") == 1
        assert here.metric("target_nodes", role="prefill") == 6
        assert here.metric("startup_seconds", role="prefill") == 60


async def test_the_pod_with_least_to_lose_goes_first() -> None:
    async with scene() as here:
        for port, running in ((7000, 3), (7001, 0), (7002, 5)):
            here.programs.nodes[port].observe("legs", "Legs.", "phase", lambda running=running: {"computing": running})
        for _ in range(40):
            await here.look(requests=1, tokens=100)
        prefill = [one for one in here.api.done if "decode" not in one and "d" not in one.split()[0]]
        assert prefill[:2] == ["p1 costs -1000", "twostep-prefill 2"]
        assert here.api.notes[0][1].reason == "ScaledDown"


async def test_a_dry_run_says_everything_and_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with scene(dry_run=True) as here:
            await here.look()
            await here.look(requests=150)
            assert (here.api.done, here.api.notes) == ([], [])
            lines = list(sentences(here.autoscaler.told.as_json(), explained=True))
            assert lines[0].startswith("prefill: from 3 to 6, ")
            assert lines[-1] == "nothing is carried out: dry run"
    assert any("dry run" in record.message for record in caplog.records)


async def test_whoever_does_not_hold_the_lease_does_nothing_until_its_holder_is_silent() -> None:
    async with scene() as here:
        await here.api.put_lease(Lease("another", "", ""), "t", 30)
        await here.look()
        await here.look(requests=150)
        assert here.api.done == []
        assert "not carried out here: another autoscaler acts" in list(
            sentences(here.autoscaler.told.as_json(), explained=False)
        )
        await here.look(after_s=31.0, requests=300)
        assert here.api.done != []
        assert here.election.leader == "me"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ApiError("pods: the API server cannot be reached: refused"), "unreachable"),
        (ApiError("scale: the API server answers 403: forbidden", status=403), "forbidden"),
        (ApiError("scale of Deployment nope: the API server answers 404: not found", status=404), "missing"),
        (ApiError("pods: the API server answers 429: slow down", status=429, retry_after_s=7.0), "throttled"),
    ],
)
async def test_while_the_api_server_is_away_or_refuses_nothing_changes_and_it_says_so_and_recovers(
    error: ApiError, kind: str
) -> None:
    async with scene() as here:
        await here.look()
        here.api.failing = error
        assert await here.look(requests=150) == error.retry_after_s
        assert (here.vitals.reason, here.autoscaler.told.status) == (str(error), str(error))
        assert (here.metric("failures_total", what=kind), here.metric("holding")) == (1, 1)
        here.api.failing = None
        await here.look(requests=150)
        assert here.api.done == ["twostep-prefill 6"]
        assert (here.vitals.reason, here.metric("holding")) == ("", 0)


async def test_a_conflict_is_looked_at_again() -> None:
    async with scene() as here:
        await here.look()
        here.api.scale_failing = ApiError("the object has been modified", status=409)
        await here.look(requests=150)
        assert (here.api.done, here.metric("failures_total", what="conflict")) == ([], 1)
        assert here.vitals.reason != "the object has been modified"
        here.api.scale_failing = None
        await here.look(requests=150)
        assert here.api.done == ["twostep-prefill 6"]


async def test_without_any_routers_metrics_nothing_changes_and_a_warning_is_left() -> None:
    async with scene() as here:
        await here.look()
        here.programs.silent.add(8000)
        for _ in range(4):
            await here.look()
        assert here.api.done == []
        assert {(note.reason, note.is_warning) for _, note in here.api.notes} == {("AutoscalerHolds", True)}
        assert len(here.api.notes) == 2
        assert here.metric("holding") == 1
        here.programs.silent.clear()
        await here.look()
        assert here.metric("holding") == 0


async def test_a_node_that_misses_one_look_is_taken_as_it_was_and_one_that_stays_silent_is_counted() -> None:
    async with scene() as here:
        await here.look()
        here.programs.silent.add(7002)
        await here.look()
        assert here.metric("silent_pods", role="prefill") == 0
        for _ in range(3):
            await here.look()
        assert here.metric("silent_pods", role="prefill") == 1


async def test_a_pod_that_no_machine_has_room_for_is_cancelled() -> None:
    async with scene() as here:
        stuck = pod_json("p3", ready=False, phase="Pending", podIP=None)
        stuck["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
        here.api.pods_of["role=prefill"].append(stuck)
        here.api.replicas["twostep-prefill"] = 4
        await here.look()
        await here.look(requests=150)
        assert "twostep-prefill 3" in here.api.done
        assert here.metric("pods", role="prefill", phase="unschedulable") == 1
