"""What finding a thousand nodes costs a router, and how old what it knows is.

`python -m twostep.benchmarks.discovery [NODES] [CHANGES_PER_S] [SECONDS]`. The router's own watch and pool, over HTTP from
another process; nodes answer at once, inside this process, so that what is measured is the router's own work and not gRPC's.
"""

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from statistics import median, quantiles

from twostep.benchmarks.discovery.instant_nodes import InstantNodes
from twostep.router.config import RouterConfig
from twostep.router.discovery.config import KubernetesDiscovery
from twostep.router.discovery.kubernetes_api import open_api
from twostep.router.discovery.kubernetes_watch import KubernetesWatch
from twostep.router.discovery.member import Member
from twostep.router.node_pool import NodePool

SETTLE_S = 10.0


class Timed:
    """A discovery that notes how old each change is when the router has taken it up."""

    source = "kubernetes"

    def __init__(self, watch: KubernetesWatch, nodes: InstantNodes) -> None:
        self.freshness = watch.freshness
        self.ages_s: list[float] = []
        self._watch = watch
        self._nodes = nodes
        self._seen: set[str] = set()

    async def changes(self) -> AsyncIterator[Sequence[Member]]:
        async for members in self._watch.changes():
            self._nodes.follow(members)
            yield members
            self._note(members)

    def _note(self, members: Sequence[Member]) -> None:
        now = time.monotonic()
        for member in members:
            if member.id not in self._seen:
                self._seen.add(member.id)
                _, _, sent_at = member.id.partition("-at-")
                self.ages_s += [now - float(sent_at)] if sent_at else []


async def measure(num_nodes: int, changes_per_s: float, seconds: float, *, connect: bool) -> dict[str, float]:
    """Return the share of a core that the router took, and how old changes were; `connect` keeps all nodes connected too."""
    command = [sys.executable, "-m", "twostep.benchmarks.discovery.api_server", str(num_nodes), str(changes_per_s)]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout
    port = int(await server.stdout.readline())
    nodes = InstantNodes()
    try:
        with tempfile.TemporaryDirectory() as folder:
            config = KubernetesDiscovery(namespace="prod", kubeconfig=_kubeconfig(Path(folder), port))
            timed = Timed(KubernetesWatch(config, open_api), nodes)
            work = _pool(timed, nodes) if connect else _listen(timed)
            working = asyncio.create_task(work)
            await asyncio.sleep(SETTLE_S)
            timed.ages_s.clear()
            before = _cpu_s()
            await asyncio.sleep(seconds)
            cpu_s = _cpu_s() - before
            working.cancel()
    finally:
        server.kill()
        await server.wait()
    ages = timed.ages_s or [0.0, 0.0]
    return {
        "cpu_percent": round(100 * cpu_s / seconds, 1),
        "changes": len(timed.ages_s),
        "age_ms_median": round(1000 * median(ages), 1),
        "age_ms_p99": round(1000 * quantiles(ages, n=100)[-1], 1),
        "connected": float(nodes.num_described),
    }


async def _pool(discovery: Timed, nodes: InstantNodes) -> None:
    config = RouterConfig(model="fake", discovery={"kubernetes": {}})  # type: ignore[arg-type]
    async with NodePool(config, discovery, new_client=nodes.client):
        await asyncio.get_running_loop().create_future()


async def _listen(discovery: Timed) -> None:
    async for _ in discovery.changes():
        pass


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


async def main(num_nodes: int, changes_per_s: float, seconds: float) -> None:
    for connect in (False, True):
        for pace in (0.01, changes_per_s):
            row = await measure(num_nodes, pace, seconds, connect=connect)
            what = "watch and heartbeats" if connect else "watch alone"
            print(json.dumps({"what": what, "nodes": num_nodes, "changes_per_s": pace, **row}), flush=True)


if __name__ == "__main__":
    given = [*sys.argv[1:], *("1000", "4", "30")[len(sys.argv) - 1 :]]
    asyncio.run(main(int(given[0]), float(given[1]), float(given[2])))
