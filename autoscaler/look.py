"""Looks at everything: what Kubernetes knows of pools and routers, and what they tell themselves."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from twostep.autoscaler.config import AutoscalerConfig, PoolConfig
from twostep.autoscaler.kubernetes_api import Api, Scale
from twostep.autoscaler.metrics_text import read_node, read_router
from twostep.autoscaler.pods import read_pods
from twostep.autoscaler.scrape import Scraper
from twostep.autoscaler.seen import NodeCounters, Phase, Pod, Pool, Role, RouterCounters, Seen
from twostep.core.clock import Clock
from twostep.kube.api_server import api_errors

T = TypeVar("T", NodeCounters, RouterCounters)


@dataclass(slots=True)
class Fresh:
    """What programs told last, and when: for a while it stands for those that do not answer."""

    told: dict[str, tuple[float, NodeCounters | RouterCounters]] = field(default_factory=dict)

    def note(self, now_s: float, counters: Mapping[str, NodeCounters] | Mapping[str, RouterCounters], stale_s: float) -> None:
        self.told = {uid: one for uid, one in self.told.items() if now_s - one[0] < stale_s}
        self.told |= {uid: (now_s, one) for uid, one in counters.items()}


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
        self._fresh = Fresh()

    async def look(self) -> tuple[Seen, Mapping[Role, Scale]]:
        """Return what is seen, and the scales as they were read. Raises ApiError."""
        config = self._config
        prefill, decode = await asyncio.gather(self._api.scale(config.prefill), self._api.scale(config.decode))
        pods = [await self._pods(one.selector, one.port_name) for one in (config.prefill, config.decode, config.routers)]
        ready = [[pod for pod in some if pod.phase is Phase.READY] for some in pods]
        told = await asyncio.gather(
            self._nodes.fetch([*ready[0], *ready[1]], read_node), self._routers.fetch(pods[2], read_router)
        )
        now_s = self._clock()
        for counters in told:
            self._fresh.note(now_s, counters, config.pace.stale_s)
        seen = Seen(
            now_s,
            Pool(prefill.replicas, pods[0], self._known(pods[0], NodeCounters)),
            Pool(decode.replicas, pods[1], self._known(pods[1], NodeCounters)),
            self._known(pods[2], RouterCounters),
            [pod.name for pod in ready[2] if pod.uid not in self._fresh.told],
        )
        return seen, {"prefill": prefill, "decode": decode}

    async def _pods(self, selector: str, port_name: str) -> list[Pod]:
        pods = await self._api.pods(selector)
        with api_errors(f"pods with {selector}"):
            return read_pods(pods, port_name, self._wall())

    def _known(self, pods: list[Pod], kind: type[T]) -> dict[str, T]:
        told = self._fresh.told
        return {pod.uid: one for pod in pods if pod.uid in told and isinstance(one := told[pod.uid][1], kind)}


def pool_of(config: AutoscalerConfig, role: Role) -> PoolConfig:
    return config.prefill if role == "prefill" else config.decode
