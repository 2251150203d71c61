"""The program as a whole, over an API server in memory: its pages, its Lease, and what it says when it lacks a right."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from twostep.autoscaler.program import serve_with
from twostep.kube.errors import ApiError
from twostep.tests.autoscaler.fake_api import FakeApi, pod_json
from twostep.tests.autoscaler.scenes import config
from twostep.tests.router.cluster import until

pytestmark = pytest.mark.processes


@asynccontextmanager
async def running(tmp_path: Path, api: FakeApi, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run an autoscaler that looks all the time, and yield a client of its pages; leaving stops it."""
    told, stop = tmp_path / "autoscaler.json", asyncio.Event()
    given = config(port=0, address_file=told, pace={"interval_s": 0.01}, **settings)
    serving = asyncio.create_task(serve_with(api, given, stop))

    async def listens() -> bool:
        return await asyncio.to_thread(told.exists)

    await until(listens)
    address = json.loads(await asyncio.to_thread(told.read_text))["http"]
    async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as http:
        yield http
        stop.set()
        await serving


def api_without_routers() -> FakeApi:
    pods = {"role=prefill": [pod_json("p0", port=1)], "role=decode": [pod_json("d0", port=1)], "role=router": []}
    return FakeApi({"twostep-prefill": 1, "twostep-decode": 1}, pods)


async def test_it_tells_its_plan_and_metrics_is_ready_and_gives_its_lease_back(tmp_path: Path) -> None:
    api = api_without_routers()
    async with running(tmp_path, api) as http:

        async def has_looked() -> bool:
            return (await http.get("/ready")).status_code == 200

        await until(has_looked)
        plan = (await http.get("/plan")).json()
        assert (plan["hold"], plan["leader"], plan["pools"]["prefill"]["target"]) == ("there is no router", True, 1)
        assert "twostep_autoscaler_leading 1.0" in (await http.get("/metrics")).text
        assert api.the_lease is not None
        assert api.the_lease.holder
    assert api.the_lease.holder == ""
    assert {note.reason for _, note in api.notes} == {"AutoscalerHolds"}


async def test_without_rights_it_stays_up_and_names_the_one_that_is_missing(tmp_path: Path) -> None:
    api = api_without_routers()
    api.failing = ApiError("scale of Deployment twostep-prefill in namespace prod: the API server answers 403: no", status=403)
    async with running(tmp_path, api) as http:

        async def has_failed() -> bool:
            return "403" in (await http.get("/ready")).text

        await until(has_failed)
        assert (await http.get("/ready")).text == f"{api.failing}\n"
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/plan")).json()["status"] == str(api.failing)
