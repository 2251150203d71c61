"""All that a router does for a thousand nodes: the watch, heartbeats, and telling each node its peers.

Nodes answer at once, inside this process, so that what is measured is the router's own work and not gRPC's.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from twostep.benchmarks.discovery_rows.instant_nodes import InstantNodes
from twostep.benchmarks.discovery_rows.many_nodes import NUM_NODES, Ages, Cost, cost_of, many_nodes
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.router.config import RouterConfig
from twostep.router.discovery.kubernetes_api import open_api
from twostep.router.discovery.kubernetes_watch import KubernetesWatch
from twostep.router.discovery.member import Member
from twostep.router.nodes.pool import NodePool

CPU = "watch, heartbeats and peers, CPU"
MEDIAN = "watch, heartbeats and peers, age of a change, median"
P99 = "watch, heartbeats and peers, age of a change, p99"
LOOK_S = 0.1
SETTLE_S = 3.0
"""After all nodes are connected: heartbeats have spread by then."""


class Timed:
    """A discovery that notes how old each change is when the router has taken it up."""

    source = "kubernetes"

    def __init__(self, watch: KubernetesWatch, nodes: InstantNodes, ages: Ages) -> None:
        self.freshness = watch.freshness
        self._watch = watch
        self._nodes = nodes
        self._ages = ages

    async def changes(self) -> AsyncIterator[Sequence[Member]]:
        async for members in self._watch.changes():
            self._nodes.follow(members)
            yield members
            self._ages.note(member.id for member in members)


async def measure(effort: Effort) -> Outcomes:
    costs = [await _cost(effort.pick(8, 3)) for _ in range(effort.rounds)]
    return {
        CPU: Measured(tuple(cost.cpu_percent for cost in costs)),
        MEDIAN: Measured(tuple(cost.age_ms(50) for cost in costs)),
        P99: Measured(tuple(cost.age_ms(99) for cost in costs)),
    }


async def _cost(seconds: float) -> Cost:
    nodes, ages = InstantNodes(), Ages()
    async with many_nodes() as kubernetes:
        timed = Timed(KubernetesWatch(kubernetes, open_api), nodes, ages)
        return await cost_of(_keep(timed, nodes), ages, settled=_connected(nodes), seconds=seconds)


async def _keep(discovery: Timed, nodes: InstantNodes) -> None:
    config = RouterConfig(model="fake", discovery={"kubernetes": {}})  # type: ignore[arg-type]
    async with NodePool(config, discovery, new_client=nodes.client):
        await asyncio.get_running_loop().create_future()


async def _connected(nodes: InstantNodes) -> None:
    while nodes.num_described < NUM_NODES:  # noqa: ASYNC110 - counted by whoever asks them
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(SETTLE_S)


POOL = Measurement((CPU, MEDIAN, P99), measure)
