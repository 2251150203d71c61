"""Carries a plan out: marks who is to go, asks for so many pods, and leaves an Event. The only place that changes anything."""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from twostep.autoscaler.config import AutoscalerConfig
from twostep.autoscaler.kubernetes_api import Api, Note, Scale
from twostep.autoscaler.look import pool_of
from twostep.autoscaler.plan import Plan
from twostep.autoscaler.seen import Role, Seen
from twostep.autoscaler.victims import deletion_costs
from twostep.kube.errors import ApiError

log = logging.getLogger(__name__)


class Apply:
    def __init__(self, api: Api, config: AutoscalerConfig, wall: Callable[[], datetime]) -> None:
        self._api = api
        self._config = config
        self._wall = wall

    async def change(self, plan: Plan, seen: Seen, role: Role, scale: Scale) -> None:
        """Make a pool what the plan says. Raises ApiError, also when somebody else was faster."""
        pool, wanted = pool_of(self._config, role), plan.of(role)
        if wanted.target < wanted.replicas and pool.kind == "Deployment":
            for pod, cost in deletion_costs(seen.pool(role), wanted.target).items():
                await self._mark(pod, cost)
        await self._api.set_scale(pool, scale, wanted.target)
        reason = "ScaledUp" if wanted.target > wanted.replicas else "ScaledDown"
        message = f"from {wanted.replicas} to {wanted.target} {role} nodes: {'; '.join(wanted.why)}"
        await self._tell(role, scale, Note(reason, message))

    async def say_hold(self, reason: str, scales: Mapping[Role, Scale]) -> None:
        """Leave an Event that nothing is changed, and why."""
        for role, scale in scales.items():
            await self._tell(role, scale, Note("AutoscalerHolds", reason, is_warning=True))

    async def _mark(self, pod: str, cost: int) -> None:
        try:
            await self._api.set_deletion_cost(pod, cost)
        except ApiError as error:
            # It has gone meanwhile: then it costs nothing to let it go.
            if not error.is_missing:
                raise

    async def _tell(self, role: Role, scale: Scale, note: Note) -> None:
        """Leave an Event. One that cannot be left changes nothing about what was done."""
        now = self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            await self._api.tell(pool_of(self._config, role), scale, note, now)
        except ApiError as error:
            log.warning("no Event can be left", extra={"role": role, "reason": str(error)})
