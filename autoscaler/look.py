"""Looks at everything: what Kubernetes knows of pools and routers, and what they tell themselves."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from twostep.autoscaler.config import AutoscalerConfig, PoolConfig
from twostep.autoscaler.kubernetes_api import Api, Scale
from twostep.autoscaler.metrics_text import read_node, read_routers
from twostep.autoscaler.pods import read_pods
from twostep.autoscaler.scrape import Scraper
from twostep.autoscaler.seen import NodeCounters, Phase, Pod, Pool, Role, RouterCounters, Seen
from twostep.core.clock import Clock
from twostep.kube.api_server import api_errors

T = TypeVar("T")


@dataclass(slots=True)
class Fresh(Generic[T]):
    """What programs told last, and when: for a while it stands for those that do not answer. By pod uid."""

    told: dict[str, tuple[float, T]] = field(default_factory=dict)

    def note(self, now_s: float, counters: Mapping[str, T], stale_s: float) -> None:
        self.told = {uid: one for uid, one in self.told.items() if now_s - one[0] < stale_s}
        self.told |= {uid: (now_s, one) for uid, one in counters.items()}

    def known(self, pods: Sequence[Pod]) -> dict[str, T]:
        return {pod.uid: self.told[pod.uid][1] for pod in pods if pod.uid in self.told}


class Look:
    """Each look is one list of pods, two scales, and one page of every program."""

    def __init__(
        self,
        api: Api,
        nodes: Scraper,
        routers: Scraper,
        config: AutoscalerConfig,
        clock: Clock,
        wall: Callable[[], datetime],
    ) -> None:
        self._api = api
        self._nodes = nodes
        self._routers = routers
        self._config = config
        self._clock = clock
        self._wall = wall
        self._fresh_nodes = Fresh[NodeCounters]()
        self._fresh_routers = Fresh[Mapping[str, RouterCounters]]()

    async def look(self) -> tuple[Seen, Mapping[Role, Scale]]:
        """Return what is seen, and the scales as they were read. Raises ApiError."""
        config = self._config
        prefill, decode = await asyncio.gather(self._api.scale(config.prefill), self._api.scale(config.decode))
        pods = [await self._pods(one.selector, one.port_name) for one in (config.prefill, config.decode, config.routers)]
        ready = [[pod for pod in some if pod.phase is Phase.READY] for some in pods]
        of_nodes, of_routers = await asyncio.gather(
            self._nodes.fetch([*ready[0], *ready[1]], read_node), self._routers.fetch(pods[2], read_routers)
        )
        now_s = self._clock()
        self._fresh_nodes.note(now_s, of_nodes, config.pace.stale_s)
        self._fresh_routers.note(now_s, of_routers, config.pace.stale_s)
        seen = Seen(
            now_s,
            Pool(prefill.replicas, pods[0], self._fresh_nodes.known(pods[0])),
            Pool(decode.replicas, pods[1], self._fresh_nodes.known(pods[1])),
            _by_router(self._fresh_routers.known(pods[2])),
            [pod.name for pod in ready[2] if pod.uid not in self._fresh_routers.told],
        )
        return seen, {"prefill": prefill, "decode": decode}

    async def _pods(self, selector: str, port_name: str) -> list[Pod]:
        pods = await self._api.pods(selector)
        with api_errors(f"pods with {selector}"):
            return read_pods(pods, port_name, self._wall())


def pool_of(config: AutoscalerConfig, role: Role) -> PoolConfig:
    return config.prefill if role == "prefill" else config.decode


def _by_router(told: Mapping[str, Mapping[str, RouterCounters]]) -> dict[str, RouterCounters]:
    """Return the counters of all routers: each worker of a pod is one, whose counters begin anew when it is started anew."""
    return {f"{uid}/{worker}": one for uid, workers in told.items() for worker, one in workers.items()}
