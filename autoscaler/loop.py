"""Looks, decides, acts, and waits; while it cannot look or may not act it changes nothing, and says why."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from twostep.autoscaler.apply import Apply
from twostep.autoscaler.config import AutoscalerConfig
from twostep.autoscaler.election import RENEWALS, Election
from twostep.autoscaler.explain import Told, pool_line
from twostep.autoscaler.kubernetes_api import Scale
from twostep.autoscaler.look import Look
from twostep.autoscaler.metrics import AutoscalerMetrics
from twostep.autoscaler.past import Past, learn
from twostep.autoscaler.plan import ROLES, Plan, make_plan, remember
from twostep.autoscaler.seen import Role, Seen
from twostep.core.status_page import Vitals
from twostep.kube.errors import ApiError

log = logging.getLogger(__name__)


class Autoscaler:
    """`told` is what the page /plan says."""

    def __init__(
        self,
        look: Look,
        apply: Apply,
        election: Election,
        config: AutoscalerConfig,
        metrics: AutoscalerMetrics,
        vitals: Vitals,
    ) -> None:
        self.told = Told(None, "nothing has been seen yet", is_dry_run=config.dry_run)
        self._look = look
        self._apply = apply
        self._election = election
        self._config = config
        self._metrics = metrics
        self._vitals = vitals
        self._past = Past()
        self._held = ""

    async def keep_electing(self) -> None:
        """Take part in the election for ever."""
        while True:
            await self._election.look()
            self._metrics.leading.set(self._election.is_leader)
            await asyncio.sleep(self._config.kubernetes.lease_s / RENEWALS)

    async def keep_scaling(self) -> None:
        """Look and act at each interval for ever; later where the API server asks for patience."""
        while True:
            patience_s = await self.step()
            await asyncio.sleep(max(self._config.pace.interval_s, patience_s))

    async def step(self) -> float:
        """Look once, and act where something is to be done. Returns how long the API server asks to be left alone."""
        try:
            await self._step()
        except ApiError as error:
            self._fail(error)
            return error.retry_after_s
        return 0.0

    async def _step(self) -> None:
        seen, scales = await self._look.look()
        past = learn(self._past, seen)
        plan = make_plan(past, seen, self._config)
        self._show(seen, past, plan)
        # What is learnt stays learnt, whatever comes of the rest.
        self._past = remember(past, _unchanged(plan), self._config)
        await self._note_hold(plan.hold, scales)
        if self._election.is_leader and not self._config.dry_run:
            await self._act(past, plan, seen, scales)
        self._vitals.reason = ""

    async def _act(self, past: Past, plan: Plan, seen: Seen, scales: Mapping[Role, Scale]) -> None:
        """Change what is to be changed, the pool that grows first. What was done is remembered, whatever comes of the rest."""
        done = _unchanged(plan)
        for role in sorted(ROLES, key=lambda role: plan.of(role).target < plan.of(role).replicas):
            if plan.of(role).is_change:
                log.info("scaling", extra={"role": role, "decision": pool_line(plan, role)})
                await self._apply.change(plan, seen, role, scales[role])
                self._metrics.count(plan, role)
                done = done.with_pool(role, plan.of(role))
                self._past = remember(past, done, self._config)

    def _show(self, seen: Seen, past: Past, plan: Plan) -> None:
        startup_s: dict[str, float] = {role: past.startup_s(role, self._config.rates) for role in ROLES}
        self._metrics.show_seen(seen, past, startup_s)
        self._metrics.show_plan(plan)
        self._metrics.holding.set(bool(plan.hold))
        status = self._election.trouble
        self.told = Told(plan, status, is_leader=self._election.is_leader, is_dry_run=self._config.dry_run)
        if self._config.dry_run:
            for role in ROLES:
                log.info("dry run", extra={"role": role, "decision": pool_line(plan, role)})

    async def _note_hold(self, hold: str, scales: Mapping[Role, Scale]) -> None:
        if hold == self._held:
            return
        self._held = hold
        log.warning("nothing is changed" if hold else "changes are possible again", extra={"reason": hold})
        if hold and self._election.is_leader and not self._config.dry_run:
            await self._apply.say_hold(hold, scales)

    def _fail(self, error: ApiError) -> None:
        """Say that nothing is changed, because the API server is away or refuses. A conflict is over at the next look."""
        self._metrics.failures.labels(_kind(error)).inc()
        if error.is_conflict:
            log.info("somebody else has changed a pool: looking again", extra={"reason": str(error)})
            return
        if str(error) != self.told.status:
            log.warning("nothing is changed", extra={"reason": str(error)})
        self._metrics.holding.set(1)
        self._vitals.reason = str(error)
        self.told = replace(self.told, status=str(error))


def _unchanged(plan: Plan) -> Plan:
    """Return the plan as it is remembered when it was not carried out."""
    for role in ROLES:
        plan = plan.with_pool(role, replace(plan.of(role), target=plan.of(role).replicas))
    return plan


def _kind(error: ApiError) -> str:
    if error.is_conflict:
        return "conflict"
    if error.is_forbidden:
        return "forbidden"
    return {404: "missing", 429: "throttled", 0: "unreachable"}.get(error.status, "api")
