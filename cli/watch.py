"""Waits for things, but never past the death of a child or the wish to stop."""

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from twostep.cli.child import Child, ChildEnded, Program, start

T = TypeVar("T")


class Stopped(Exception):
    """Somebody pressed Ctrl-C or sent SIGTERM."""


class Watch:
    """Holds the running children and the wish to stop. A second wish to stop kills the children at once."""

    def __init__(self) -> None:
        self.farewells: list[ChildEnded] = []
        """In what words children ended that were asked to stop and did not end well."""
        self.cut_short_by: signal.Signals | None = None
        """The second wish to stop. What children say then is a consequence, and no farewell."""
        self._children: list[Child] = []
        self._stop = asyncio.Event()

    def pids(self) -> dict[str, int]:
        """Return the process ids of the running children by name."""
        return {child.name: child.pid for child in self._children}

    def listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self.ask_to_stop, signum)

    def ask_to_stop(self, signum: signal.Signals) -> None:
        """Note that somebody has sent `signum`."""
        if self._stop.is_set():
            self.cut_short_by = signum
            for child in self._children:
                child.kill()
        self._stop.set()

    async def until(self, wanted: Coroutine[Any, Any, T]) -> T:
        """Return what `wanted` returns. Raises Stopped, or ChildEnded as soon as any child has ended."""
        wish = asyncio.create_task(self._stop.wait())
        deaths = [asyncio.create_task(child.ended()) for child in self._children]
        result = asyncio.create_task(wanted)
        try:
            await asyncio.wait([result, wish, *deaths], return_when=asyncio.FIRST_COMPLETED)
            for death in deaths:
                if death.done():
                    raise death.result()
            if wish.done():
                raise Stopped
            return await result
        finally:
            await _cancel([result, wish, *deaths])

    @asynccontextmanager
    async def started(self, programs: Sequence[Program], folder: Path, *, stop_s: float) -> AsyncIterator[None]:
        """Run `programs` as children; on leaving, all are asked to stop at once, and killed after `stop_s`."""
        children: list[Child] = []
        try:
            for program in programs:
                children.append(await start(program, folder))
                self._children.append(children[-1])
            yield
        finally:
            endings = await asyncio.gather(*(child.stop(within_s=stop_s) for child in children))
            self._children = [child for child in self._children if child not in children]
            if not self.cut_short_by:
                self.farewells.extend(ending for ending in endings if ending)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
