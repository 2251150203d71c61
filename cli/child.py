"""One program that the command line started: its process, its log file, and in what words it ended."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twostep.core.child_process import send_signal
from twostep.core.errors import ConfigError

LAST_LINES = 12


@dataclass(frozen=True, slots=True)
class Program:
    """What to start: a module, its configuration, and what is added to the environment."""

    name: str
    module: str
    config: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)


class ChildEnded(Exception):
    """The child called `name` did not end well. `exit_code` is what the command should end with."""

    def __init__(self, name: str, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.name = name
        self.exit_code = exit_code


class Child:
    """A running program. Its standard output and error go to `log`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> ChildEnded:
        """Wait for the process to end by itself, and return in what words it did."""
        return self._ended(await self._process.wait())

    async def stop(self, *, within_s: float) -> ChildEnded | None:
        """Send SIGTERM, after `within_s` SIGKILL; return when the process is gone, with its words unless it ended well."""
        send_signal(self._process, signal.SIGTERM)
        try:
            code = await asyncio.wait_for(self._process.wait(), within_s)
        except TimeoutError:
            self.kill()
            await self._process.wait()
            return ChildEnded(self.name, f"{self.name} did not stop within {within_s:g} s and was killed: {self.log}", 1)
        return None if code in (0, -signal.SIGTERM) else self._ended(code)

    def kill(self) -> None:
        send_signal(self._process, signal.SIGKILL)

    def _ended(self, code: int) -> ChildEnded:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        if code == ConfigError.exit_code and lines:
            return ChildEnded(self.name, f"{self.name}: {lines[-1]}", code)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        last = "".join(f"\n  {line}" for line in lines[-LAST_LINES:])
        return ChildEnded(self.name, f"{self.name} {how}; its log, {self.log}, ends with:{last or ' nothing'}", 1)


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Raises ConfigError where something cannot be written inside."""
    try:
        yield
    except OSError as cause:
        raise ConfigError(f"cannot write to {folder}: {cause.strerror}: free some space, or set TMPDIR") from cause


async def start(program: Program, folder: Path) -> Child:
    """Start `program` with its configuration and log file in `folder`; it dies with this process.

    Raises ConfigError where these cannot be written.
    """
    config, log = folder / f"{program.name}.yaml", folder / f"{program.name}.log"
    with writable(folder):
        # JSON is YAML too.
        config.write_text(json.dumps(program.config, indent=2) + "\n", encoding="utf-8")
        output = log.open("wb")
    command = [sys.executable, "-m", "twostep.core.tethered", str(os.getpid()), program.module]
    with output:
        process = await asyncio.create_subprocess_exec(
            *command,
            "--config",
            str(config),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **program.environment},
            # A session of its own: Ctrl-C reaches the command line alone, which then stops its children in order.
            start_new_session=True,
        )
    return Child(program.name, process, log)
