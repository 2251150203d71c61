"""A plan in words: for the log, for Events, for the page /plan, and for `twostep plan --explain`."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from twostep.autoscaler.plan import ROLES, Plan
from twostep.autoscaler.seen import Role


@dataclass(frozen=True, slots=True)
class Told:
    """What the page /plan says. `status` tells why nothing is carried out; empty when it is."""

    plan: Plan | None
    status: str = ""
    is_leader: bool = False
    is_dry_run: bool = False

    def as_json(self) -> dict[str, Any]:
        pools = {role: asdict(self.plan.of(role)) for role in ROLES} if self.plan else {}
        hold = self.plan.hold if self.plan else ""
        return {"status": self.status, "leader": self.is_leader, "dry_run": self.is_dry_run, "hold": hold, "pools": pools}


def sentences(told: Mapping[str, Any], *, explained: bool) -> Iterator[str]:
    """Yield the lines that a person reads of the page /plan. Raises LookupError and TypeError when it is not that page."""
    for role, pool in told["pools"].items():
        change = "stays at" if pool["target"] == pool["replicas"] else f"from {pool['replicas']} to"
        yield f"{role}: {change} {pool['target']}, {pool['need']} needed"
        yield from (f"  {why}" for why in pool["why"] if explained)
    if told["hold"]:
        yield f"nothing is changed: {told['hold']}"
    if told["status"]:
        yield f"not carried out: {told['status']}"
    if told["dry_run"]:
        yield "nothing is carried out: dry run"
    elif not told["leader"]:
        yield "not carried out here: another autoscaler acts"


def pool_line(plan: Plan, role: Role) -> str:
    """Return a pool's decision and its reasons in one line."""
    pool = plan.of(role)
    return f"{pool.replicas} to {pool.target} nodes, {pool.need} needed: {'; '.join(pool.why)}"
