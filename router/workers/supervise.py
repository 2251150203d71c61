"""Runs a router as several worker processes: carries out what the policy decides, and tells it what happens to them."""

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from twostep.core.child_process import send_signal
from twostep.core.config import values_of
from twostep.core.host_port import join_host_port
from twostep.core.logging import logging_options
from twostep.router.address import tell_addresses
from twostep.router.config import RouterConfig
from twostep.router.front.http.server import LAST_WORDS_S
from twostep.router.workers.claim import claimed
from twostep.router.workers.restart_policy import (
    Due,
    Ended,
    Event,
    Leave,
    Listening,
    Order,
    RestartPolicy,
    Start,
    StartLater,
    Stop,
    StopAsked,
    Tell,
)
from twostep.router.workers.siblings import Siblings

log = logging.getLogger(__name__)

STOP_MARGIN_S = 5.0
START_S = 120.0
"""A worker that does not listen after so long is killed."""
LOOK_S = 10.0
LOOKS = 3
"""So is one that serves, but has not answered so often in a row: it hangs."""


async def supervise(config: RouterConfig, stop: asyncio.Event) -> None:
    """Serve with `config.workers` processes until `stop` is set, then let all of them drain.

    Raises ConfigError, and SystemExit when a worker has not ended well, or none can be started any more.
    """
    with claimed(config) as (port, grpc_port), tempfile.TemporaryDirectory(prefix="twostep-router-") as folder:
        shared = replace(config, port=port, grpc_port=grpc_port)
        code = await Supervisor(shared, Path(folder), Siblings(Path(folder))).run(stop)
    if code:
        raise SystemExit(code)


class Supervisor:
    """`config` says which ports are shared; what workers are told, and the sockets of `siblings`, lie in `folder`."""

    def __init__(self, config: RouterConfig, folder: Path, siblings: Siblings) -> None:
        self._config = config
        self._folder = folder
        self._siblings = siblings
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._processes: dict[int, Process] = {}
        self._tasks = asyncio.TaskGroup()

    async def run(self, stop: asyncio.Event) -> int:
        """Return what the program is to end with, once all workers have ended. Raises ConfigError."""
        policy = RestartPolicy(self._config.workers)
        async with self._tasks:
            stopping = self._tasks.create_task(self._tell_stop(stop))
            orders = policy.begin()
            while not (leave := await self._carry_out(orders)):
                orders = policy.on(await self._events.get())
            stopping.cancel()
            return leave.code

    async def _carry_out(self, orders: Sequence[Order]) -> Leave | None:
        """Do what is ordered, and return the order that ends all, if it is among them."""
        for order in orders:
            match order:
                case Start(number, num_starts):
                    process = self._processes[number] = await self._start(number, num_starts)
                    self._tasks.create_task(self._follow(number, process))
                case StartLater(number, delay_s):
                    asyncio.get_running_loop().call_later(delay_s, self._events.put_nowait, Due(number))
                case Stop(number):
                    self._tasks.create_task(self._stop(self._processes[number]))
                case Tell():
                    tell_addresses(self._addresses(), self._config.address_file)
                case Leave():
                    return order
        return None

    async def _start(self, number: int, num_starts: int) -> Process:
        path = self._folder / f"{number}.json"
        router = values_of(replace(self._config, address_file=None))
        told = {"router": router, "number": number, "num_starts": num_starts, "folder": str(self._folder)}
        # JSON is YAML too.
        path.write_text(json.dumps(told), encoding="utf-8")
        module = ("twostep.core.tethered", str(os.getpid()), "twostep.router.workers.worker")
        command = (sys.executable, "-P", "-m", *module, "--config", str(path), *logging_options())
        # In a session of its own Ctrl-C does not reach it: it is told to stop.
        return await asyncio.create_subprocess_exec(*command, stdout=PIPE, start_new_session=True)

    async def _follow(self, number: int, process: Process) -> None:
        """Tell what becomes of the worker, until its end. It does not outlive this."""
        began: float | None = None
        try:
            if await self._comes_to_serve(number, process):
                began = time.monotonic()
                self._events.put_nowait(Listening(number))
            code = await self._until_it_ends(number, process)
        finally:
            send_signal(process, signal.SIGKILL)
            # The event loop may end next. Python complains of a pipe that is left open for longer than that.
            await process.communicate()
        served_s = None if began is None else time.monotonic() - began
        log.log(
            logging.WARNING if code else logging.INFO,
            "worker ended",
            extra={"worker": number, "pid": process.pid, "code": code, "served_s": served_s},
        )
        self._events.put_nowait(Ended(number, code, served_s))

    async def _comes_to_serve(self, number: int, process: Process) -> bool:
        """Wait for the worker to say that it listens. It is killed when that takes too long."""
        assert process.stdout
        try:
            async with asyncio.timeout(START_S):
                return bool(await process.stdout.readline())
        except TimeoutError:
            log.error("worker does not start", extra={"worker": number, "pid": process.pid, "seconds": START_S})
            send_signal(process, signal.SIGKILL)
            return False

    async def _until_it_ends(self, number: int, process: Process) -> int:
        """Return the worker's exit code. It is killed when it hangs."""
        num_missed = 0
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    return await process.wait()
            except TimeoutError:
                answers = await self._siblings.ask(number, "/health", within_s=LOOK_S)
            num_missed = 0 if answers.get(number) else num_missed + 1
            if num_missed == LOOKS:
                log.error("worker hangs", extra={"worker": number, "pid": process.pid})
                send_signal(process, signal.SIGKILL)

    async def _stop(self, process: Process) -> None:
        """Let the worker drain; kill it when that takes too long."""
        send_signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(self._config.drain_s + LAST_WORDS_S + STOP_MARGIN_S):
                await process.wait()
        except TimeoutError:
            send_signal(process, signal.SIGKILL)

    async def _tell_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._events.put_nowait(StopAsked())

    def _addresses(self) -> dict[str, str]:
        ports = {"http": self._config.port, "grpc": self._config.grpc_port_or_next}
        return {protocol: join_host_port(self._config.host, port) for protocol, port in ports.items()}
