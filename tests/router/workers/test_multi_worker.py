"""What workers know of each other, without their program."""

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from twostep.core.errors import ServingError, UnknownRequest
from twostep.router.config import RouterConfig
from twostep.router.front.http.edge import on_serving_error
from twostep.router.front.http.state_pages import state_routes
from twostep.router.workers import supervise
from twostep.router.workers.multi_worker import MultiWorker
from twostep.router.workers.siblings import Siblings
from twostep.router.workers.supervise import Supervisor

pytestmark = pytest.mark.processes


class Told:
    """StatePages that say what the test wants. `hold` lets none of them be said."""

    def __init__(self, *, is_ready: bool = True, stories: dict[str, float] | None = None) -> None:
        self.is_ready = is_ready
        self.hold = asyncio.Event()
        self.hold.set()
        self._stories = stories or {}

    async def ready(self, _: Request) -> Response:
        await self.hold.wait()
        return JSONResponse({"ready": self.is_ready, "proven_pairs": 1}, 200 if self.is_ready else 503)

    async def metrics(self, _: Request) -> Response:
        await self.hold.wait()
        return Response("# HELP a A.\n# TYPE a gauge\na 1.0\n")

    async def explanation(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._stories:
            raise UnknownRequest(f"no request {name!r}")
        return JSONResponse({"client_id": name, "arrived_at": self._stories[name]})


@asynccontextmanager
async def workers(folder: Path, *told: Told) -> AsyncIterator[httpx.AsyncClient]:
    """Let workers tell each other that, and yield a client of the first one's pages."""
    group = [MultiWorker(Siblings(folder, number), number, 1) for number in range(len(told))]
    async with AsyncExitStack() as stack:
        for worker, own in zip(group, told, strict=True):
            await stack.enter_async_context(worker.telling(own))
        routes = state_routes(group[0].pages(told[0]))
        app = Starlette(routes=list(routes), exception_handlers={ServingError: on_serving_error})
        yield await stack.enter_async_context(httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router"))


async def test_who_does_not_answer_in_time_is_not_ready_and_tells_no_metrics(tmp_path: Path) -> None:
    deaf = Told()
    async with workers(tmp_path, Told(), deaf, Told()) as client:
        deaf.hold.clear()
        reply = await client.get("/ready")
        assert (reply.status_code, reply.json()["workers"]) == (503, {"0": True, "1": False, "2": True})
        assert (await client.get("/metrics")).text == '# HELP a A.\n# TYPE a gauge\na{worker="0"} 1.0\na{worker="2"} 1.0\n'
        deaf.hold.set()
        assert (await client.get("/ready")).status_code == 200


async def test_who_is_dead_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "7.sock").touch()
    async with workers(tmp_path, Told(), Told()) as client:
        assert (await client.get("/ready")).json()["workers"] == {"0": True, "1": True}


async def test_a_request_is_found_whoever_has_served_it_and_the_latest_of_a_name_is_told(tmp_path: Path) -> None:
    async with workers(tmp_path, Told(stories={"mine": 1.0, "both": 2.0}), Told(stories={"a/b?c": 3.0, "both": 4.0})) as client:
        found = {
            name: (await client.get(f"/requests/{name}")).json().get("arrived_at") for name in ("mine", "both", "a%2Fb%3Fc")
        }
        assert found == {"mine": 1.0, "both": 4.0, "a%2Fb%3Fc": 3.0}
        assert (await client.get("/requests/nobody")).status_code == 404


async def test_a_worker_keeps_its_doors_shut_while_others_can_serve_and_it_cannot(tmp_path: Path) -> None:
    told, newcomer = Told(), MultiWorker(Siblings(tmp_path, 9), 9, 2)
    readiness: Any = SimpleNamespace(is_ready=False)
    async with workers(tmp_path, told):
        opening = asyncio.create_task(newcomer.until_needed(readiness, asyncio.Event()))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(opening), 0.3)
        readiness.is_ready = True
        await opening
        readiness.is_ready = told.is_ready = False
        await newcomer.until_needed(readiness, asyncio.Event())
        told.is_ready, stop = True, asyncio.Event()
        stop.set()
        await newcomer.until_needed(readiness, stop)


class Scripted(Siblings):
    """Worker 0 answers when it is asked, or does not, as the script says; then its process has to end."""

    def __init__(self, folder: Path, script: Sequence[bool], process: asyncio.subprocess.Process) -> None:
        super().__init__(folder)
        self.script = list(script)
        self._process = process

    async def ask(self, number: int, path: str, *, within_s: float = 1.0) -> Mapping[int, httpx.Response | None]:
        if not self.script:
            # Killed, but not yet buried.
            await self._process.wait()
            return {}
        return {number: httpx.Response(200) if self.script.pop(0) else None}


async def test_a_worker_that_has_not_answered_three_times_in_a_row_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "LOOK_S", 0.01)
    process = await asyncio.create_subprocess_exec("sleep", "1000")
    siblings = Scripted(tmp_path, [True, False, False, True, False, False, False], process)
    async with asyncio.timeout(60):
        code = await Supervisor(RouterConfig(workers=2), tmp_path, siblings)._until_it_ends(0, process)
    assert (code, siblings.script) == (-signal.SIGKILL, [])


async def test_a_worker_that_does_not_come_to_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "START_S", 0.1)
    process = await asyncio.create_subprocess_exec("sleep", "1000", stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        assert await Supervisor(RouterConfig(workers=2), tmp_path, Siblings(tmp_path))._comes_to_serve(0, process) is False
        assert await process.wait() == -signal.SIGKILL


async def test_a_worker_is_gone_with_its_pipe_when_nobody_follows_it_any_more(tmp_path: Path) -> None:
    """What is left of it would be taken down after the event loop, which Python does with a traceback."""
    process = await asyncio.create_subprocess_exec("sleep", "1000", stdout=asyncio.subprocess.PIPE)
    supervisor = Supervisor(RouterConfig(workers=2), tmp_path, Siblings(tmp_path))
    following = asyncio.create_task(supervisor._follow(0, process))
    await asyncio.sleep(0)
    following.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await following
    assert process.stdout
    assert (process.returncode, process.stdout.at_eof()) == (-signal.SIGKILL, True)
