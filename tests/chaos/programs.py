"""One program of twostep as a real process that a test may kill, freeze, thaw, and start again at the same address."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from twostep.tests.chaos.waiting import until

START_S = 120.0
FREEZE_S = 60.0
PORTS = {"grpc": "port", "metrics": "metrics_port"}
ROUTER_PORTS = {"http": "port", "grpc": "grpc_port"}


class Program:
    """`inside` is put before its command: what moves it into a network of its own. Its log is at `log`."""

    def __init__(
        self,
        name: str,
        module: str,
        folder: Path,
        settings: Mapping[str, object],
        *,
        inside: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.addresses: dict[str, str] = {}
        self._module = module
        self._settings = dict(settings)
        self._address_file = folder / f"{name}.json"
        self._inside = tuple(inside)
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def last_words(self) -> str:
        """How the process has ended, and the end of its log; nothing while it runs."""
        ended = self._process and self._process.poll()
        return "" if ended is None else f"\n{self.name} has ended with {ended}: {self.log.read_text()[-4000:]}"

    def start(self) -> None:
        """Start, at the address of the life before if there was one; `listening` tells when it can be called."""
        ports = ROUTER_PORTS if self._module.endswith("router") else PORTS
        known = {ports[kind]: address.rpartition(":")[2] for kind, address in self.addresses.items() if kind in ports}
        settings = {**self._settings, **known, "address_file": str(self._address_file)}
        self._address_file.unlink(missing_ok=True)
        arguments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        # Tied to this process: no node outlives a test run that is itself killed.
        command = [sys.executable, "-m", "twostep.core.tethered", str(os.getpid()), self._module, *arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._inside, *command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def listening(self) -> None:
        async def missing() -> str:
            assert self.is_running, self.last_words
            return "" if self._address_file.exists() else f"{self.name} tells no address"

        await until(missing, within_s=START_S)
        self.addresses = json.loads(self._address_file.read_text())

    async def restart(self) -> None:
        self.start()
        await self.listening()

    def freeze(self) -> None:
        """Stop the process where it is; the kernel goes on to answer for its sockets."""
        self.send(signal.SIGSTOP)

    async def frozen(self) -> None:
        """Wait until the process has stopped itself."""

        async def missing() -> str:
            return "" if self.is_frozen else f"{self.name} has not frozen"

        await until(missing, within_s=FREEZE_S)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    @property
    def is_frozen(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def ask_to_stop(self) -> None:
        self.send(signal.SIGTERM)

    async def kill(self) -> None:
        """Kill with SIGKILL, and return when it is gone."""
        self.send(signal.SIGKILL)
        await self.ended(within_s=60)

    async def ended(self, *, within_s: float) -> int:
        """Wait for the end and return the exit code."""
        assert self._process
        return await asyncio.to_thread(self._process.wait, within_s)

    def end(self) -> None:
        """Make sure that the process is gone."""
        self.send(signal.SIGKILL)
        if self._process:
            self._process.wait()

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def send(self, signum: signal.Signals) -> None:
        if self.is_running:
            os.killpg(self.pid, signum)
