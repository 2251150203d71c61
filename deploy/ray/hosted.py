"""Runs one of our programs as a child of a replica: started, watched, and stopped within its time."""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from twostep.cli.child import Child, ChildEnded, Program, start
from twostep.cli.cluster import read_when_written
from twostep.core.errors import ConfigError

log = logging.getLogger("ray.serve")


class HostedProgram:
    """A program that listens. It dies with this process, in whatever way that ends. `told` is what it says of itself."""

    def __init__(self, child: Child, folder: Path, told: Mapping[str, Any], ended: "asyncio.Task[ChildEnded]") -> None:
        self.told = told
        self._child = child
        self._folder = folder
        self._ended = ended

    @classmethod
    async def start(cls, name: str, module: str, values: Mapping[str, Any]) -> Self:
        """Start `module` and wait until it listens. Raises ChildEnded when it ends before."""
        folder = Path(tempfile.mkdtemp(prefix=f"twostep-{name}-"))
        try:
            return await cls._start(name, module, values, folder)
        except BaseException as error:
            _tidy_up(folder, error)
            raise

    @classmethod
    async def _start(cls, name: str, module: str, values: Mapping[str, Any], folder: Path) -> Self:
        addresses = folder / "addresses.json"
        child = await start(Program(name, module, {**values, "address_file": str(addresses)}), folder)
        ended = asyncio.create_task(child.ended())
        listening = asyncio.create_task(read_when_written(addresses))
        try:
            await asyncio.wait({ended, listening}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise ended.result()
            program = cls(child, folder, await listening, ended)
        except BaseException:
            child.kill()
            raise
        finally:
            listening.cancel()
        log.info(f"{name} listens: {program.told}, pid {child.pid}, its log is {child.log}")
        return program

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    def require_alive(self) -> None:
        """Raise ChildEnded, in the program's own words, when it has ended."""
        if self.has_ended:
            raise self._ended.result()

    def abandon(self) -> None:
        """Kill the program before anybody has used it."""
        self._child.kill()
        _tidy_up(self._folder, self._ended.result() if self.has_ended else None)
        self._ended.cancel()

    async def stop(self, *, within_s: float) -> None:
        """Let the program drain and end; kill it after `within_s`. Its log stays where it did not end well."""
        has_died = self.has_ended
        farewell = await self._child.stop(within_s=within_s)
        self._ended.cancel()
        if farewell:
            log.error(str(farewell))
        elif not has_died:
            shutil.rmtree(self._folder)


def _tidy_up(folder: Path, error: BaseException | None) -> None:
    """Remove a program's folder, unless its log has more to say than `error` does."""
    if not isinstance(error, ChildEnded) or error.exit_code == ConfigError.exit_code:
        shutil.rmtree(folder)
