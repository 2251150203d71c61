"""Owns the tasks of a node that outlive a call: one that fails, fails the node; on leaving they are finished or cancelled."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from twostep.core.errors import NodeUnavailable

T = TypeVar("T")
FINISH_S = 2.0
"""How long jobs may take to finish when the node stops; a peer that is gone must not keep it."""


class Background:
    """A TaskGroup of two kinds of tasks: jobs, which end by themselves, and daemons, which are cancelled at the end.

    After that nothing can be started: a call that still comes in is told so by NodeUnavailable.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._daemons: set[asyncio.Task[Any]] = set()
        self._is_ending = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.finish()
        finally:
            self._is_ending = True
            for task in self._jobs | self._daemons:
                task.cancel()
            await self._group.__aexit__(kind, error, trace)

    def __len__(self) -> int:
        """Return how many jobs are not done yet."""
        return len(self._jobs)

    def spawn(self, job: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a job: something that has to be done even if its cause is over."""
        return self._start(job, self._jobs)

    def spawn_daemon(self, daemon: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something that goes on for as long as the node lives, or until it is cancelled."""
        return self._start(daemon, self._daemons)

    async def finish(self, *, within_s: float = FINISH_S) -> None:
        """Wait until the jobs are done, those too that they start, a bounded time."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + within_s
        while self._jobs and (left_s := give_up_at - loop.time()) > 0:
            await asyncio.wait(self._jobs, timeout=left_s)

    def _start(self, work: Coroutine[Any, Any, T], kind: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
        try:
            task = self._group.create_task(work)
        except RuntimeError as cause:
            work.close()
            raise NodeUnavailable("this node has stopped") from cause
        kind.add(task)
        task.add_done_callback(kind.discard)
        if self._is_ending:
            # Peers and routers speak to a node to its very end: what begins now must not keep it.
            task.cancel()
        return task
