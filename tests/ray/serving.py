"""Ray on this machine with Serve, the application on it, and what a test asks Serve about its replicas."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.schema import ServeDeploySchema

from twostep.deploy.ray.serve_file import IMPORT_PATH
from twostep.tests.chaos.questions import Question
from twostep.tests.chaos.streams import Stream
from twostep.tests.chaos.waiting import until

APP = "twostep"
OBJECT_STORE_BYTES = 80 << 20
START_S = 120.0
CHANGE_S = 90.0
TIMERS = {"drain_s": 20, "call_s": 2, "handshake_retry_s": 0.5}
ARGS: dict[str, Any] = {
    "model": "fake:vocab_size=128",
    "engine": {"dtype": "float32", "kv_bytes": 8 << 20},
    "prefill": {"model": "fake:vocab_size=128,step_s=0.01", "timers": TIMERS},
    "decode": {"model": "fake:vocab_size=128,step_s=0.02", "timers": TIMERS, "landing_bytes": 2 << 20},
    "router": {"model": "fake", "request_timeout_s": 30, "recovery_wait_s": 20},
}
"""One ASCII character is a token, and steps take time: there is a middle of a stream."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def ray_and_serve() -> Iterator[str]:
    """Run Ray with Serve's proxy; yield its URL. Afterwards no process of theirs is left."""
    port = free_port()
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, log_to_driver=False, namespace="serve"
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()
    finally:
        ray.shutdown()


def deploy(args: Mapping[str, Any], **replicas: int | Mapping[str, Any]) -> None:
    """Tell Serve what `serve deploy` would; `replicas` are numbers of replicas, or options, by deployment."""
    options = {name: {"num_replicas": told} if isinstance(told, int) else told for name, told in replicas.items()}
    deployments = [{"name": name, "ray_actor_options": {"num_cpus": 0}, **told} for name, told in options.items()]
    application = {"name": APP, "route_prefix": "/", "import_path": IMPORT_PATH, "args": args, "deployments": deployments}
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [application]}))


async def running(**replicas: int) -> None:
    """Wait until Serve runs exactly so many replicas of these deployments, and nothing starts or stops."""

    async def missing() -> str:
        application = (await asyncio.to_thread(serve.status)).applications.get(APP)
        states = (
            {name: dict(application.deployments[name].replica_states) for name in replicas}
            if application and application.deployments
            else {}
        )
        wanted = {name: {"RUNNING": num} for name, num in replicas.items()}
        is_there = application is not None and application.status == "RUNNING" and states == wanted
        return "" if is_there else f"{wanted}, not {states}: {application and application.message}"

    await until(missing, within_s=START_S)


async def node_pids(role: str) -> list[int]:
    """Return the process ids of the nodes of a pool; none while no replica runs."""
    pool = serve.get_deployment_handle(role, APP)
    try:
        return sorted(await pool.broadcast("pid").results_async(timeout_s=CHANGE_S))
    except DeploymentUnavailableError:
        return []


def actor_of(pid: int) -> int:
    """Return the process id of the replica that a node belongs to."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def failed(app: str = APP) -> str:
    """Wait until the application cannot be deployed, and return in what words."""
    message = ""

    async def missing() -> str:
        nonlocal message
        application = (await asyncio.to_thread(serve.status)).applications.get(app)
        if application is None or application.status != "DEPLOY_FAILED":
            return f"the failure of {application}"
        message = "\n".join([application.message, *(one.message for one in application.deployments.values())])
        return ""

    await until(missing, within_s=START_S)
    return message


async def gauge(http: httpx.AsyncClient, name: str) -> float:
    """Return what a router tells at /metrics."""
    page = (await http.get("/metrics")).text
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith(f"{name} "))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def proven(http: httpx.AsyncClient, num_pairs: int) -> None:
    """Wait until bytes have moved between so many pairs of nodes that the router knows."""

    async def missing() -> str:
        report = (await http.get("/ready")).json()
        nodes = [node for node in report["nodes"] if node["ready"]]
        return (
            ""
            if report["proven_pairs"] == num_pairs and len(nodes) == len(report["nodes"])
            else f"{num_pairs} pairs in {report}"
        )

    await until(missing, within_s=CHANGE_S)


@asynccontextmanager
async def under_load(http: httpx.AsyncClient, *, num_clients: int = 3) -> AsyncIterator[list[Stream]]:
    """Let clients ask one question after the other for as long as the block lasts, and hear all answers to the end."""
    streams: list[Stream] = []
    is_over = asyncio.Event()

    async def keep_asking(client: int) -> None:
        while not is_over.is_set():
            stream = Stream(Question(len(streams), num_prompt=80, max_tokens=40, salt=f"{client}-{len(streams)}"))
            streams.append(stream)
            await stream.listen(http)

    async with asyncio.TaskGroup() as clients:
        for client in range(num_clients):
            clients.create_task(keep_asking(client))
        try:
            await answered(streams, num_clients)
            yield streams
            await answered(streams, len(streams) + num_clients)
        finally:
            is_over.set()


async def answered(streams: Sequence[Stream], num: int) -> None:
    """Wait until so many answers have been heard to the end."""

    async def missing() -> str:
        return "" if sum(stream.is_over for stream in streams) >= num else f"{num} answers"

    await until(missing, within_s=CHANGE_S)
