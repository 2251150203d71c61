"""A thousand nodes behind an API server in another process, four of them replaced every second; what finding them costs."""

import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twostep.benchmarks.harness.rounds import percentile
from twostep.router.discovery.config import KubernetesDiscovery

NUM_NODES = 1000
CHANGES_PER_S = 4.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What was seen while changes kept coming: the share of a core, in percent, and how old they were when taken up, in ms."""

    cpu_percent: float
    ages_ms: Sequence[float]

    def age_ms(self, percent: float) -> float:
        return percentile(list(self.ages_ms), percent)


class Ages:
    """How old changes are. The uid of a pod that came with one ends with the time at which that was sent."""

    def __init__(self) -> None:
        self.noted_ms: list[float] = []
        self._seen: set[str] = set()

    def note(self, uids: Iterable[str]) -> None:
        """Note all pods that are there now, as soon as they have been taken up."""
        now = time.monotonic()
        for uid in uids:
            if uid not in self._seen:
                self._seen.add(uid)
                _, _, sent_at = uid.partition("-at-")
                if sent_at:
                    self.noted_ms.append(1e3 * (now - float(sent_at)))


@asynccontextmanager
async def many_nodes() -> AsyncIterator[KubernetesDiscovery]:
    """Start the API server; yields how to ask it."""
    command = (sys.executable, "-m", "twostep.benchmarks.discovery_rows.api_server", str(NUM_NODES), str(CHANGES_PER_S))
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout
    try:
        with TemporaryDirectory() as folder:
            port = int(await server.stdout.readline())
            yield KubernetesDiscovery(namespace="prod", kubeconfig=_kubeconfig(Path(folder), port))
    finally:
        server.kill()
        await server.wait()


async def cost_of(work: Coroutine[Any, Any, None], ages: Ages, *, settled: Coroutine[Any, Any, None], seconds: float) -> Cost:
    """Run `work`, wait until it is `settled`, and measure it for so many seconds. Raises what it ends with meanwhile."""
    working = asyncio.ensure_future(work)
    try:
        await settled
        ages.noted_ms.clear()
        before_s = _cpu_s()
        done, _ = await asyncio.wait({working}, timeout=seconds)
        cost = Cost(100 * (_cpu_s() - before_s) / seconds, tuple(ages.noted_ms))
        if done:
            await working
        return cost
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


def _kubeconfig(folder: Path, port: int) -> Path:
    path = folder / "kubeconfig"
    kubeconfig = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(json.dumps(kubeconfig), encoding="utf-8")
    return path


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
