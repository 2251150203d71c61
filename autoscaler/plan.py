"""Decides how many nodes each pool is to have, and says why. Pure: it is given the time, and all that has been seen."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from twostep.autoscaler.balance import Limits, balance
from twostep.autoscaler.config import AutoscalerConfig, PaceConfig, PoolConfig
from twostep.autoscaler.forecast import Forecast, Point, forecast
from twostep.autoscaler.need import Need, decode_need, memory_need, prefill_need
from twostep.autoscaler.past import Ceiling, NodeCount, Past, is_busy
from twostep.autoscaler.rates import StepTime
from twostep.autoscaler.seen import Phase, Pool, Role, Seen

SHORTAGE_S = 400.0
"""What a shortage may last if it is as rare as requests that may be late; found by simulation."""
CATCH_UP_S = 60.0
"""In how long a backlog is to be worked off."""
WARM_UP_S = 300.0
"""For how long arrivals have to be known before there may be fewer nodes."""
FOR_GROWTH = 0.25
"""The share of an hour's changes that is kept for growing."""
ROLES: Sequence[Role] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """`replicas` are asked for now, `need` are needed, `target` is what to ask for; `why` explains it, sentence by sentence."""

    replicas: int
    need: int
    target: int
    why: tuple[str, ...] = ()

    @property
    def is_change(self) -> bool:
        return self.target != self.replicas


@dataclass(frozen=True, slots=True)
class Plan:
    """`hold` says why nothing may change; empty when it may."""

    at_s: float
    prefill: PoolPlan
    decode: PoolPlan
    hold: str = ""

    def of(self, role: Role) -> PoolPlan:
        return self.prefill if role == "prefill" else self.decode

    def with_pool(self, role: Role, pool: PoolPlan) -> "Plan":
        return replace(self, prefill=pool) if role == "prefill" else replace(self, decode=pool)


def make_plan(past: Past, seen: Seen, config: AutoscalerConfig) -> Plan:
    """Return how many nodes each pool is to have. `past` has learnt what is `seen`."""
    if trouble := _trouble(seen):
        return _holding(seen, trouble)
    if seen.prefill.replicas == 0 and seen.decode.replicas == 0:
        return _asleep(past, seen, config)
    if config.may_sleep and _is_idle(past, seen, config.pace):
        return _sleep(past, seen, config.pace)
    needs = needs_of(past, seen, config)
    if needs is None:
        return _awaiting_rates(past, seen, config)
    return _paced(past, seen, config, needs)


def remember(past: Past, plan: Plan, config: AutoscalerConfig) -> Past:
    """Return the past with what has been decided, and is carried out."""
    changed = [plan.at_s for role in ROLES if plan.of(role).is_change]
    needs = past.needs
    if not plan.hold:
        longest_s = max(_hold_s(past, role, config, 1) for role in ROLES)
        needs = [one for one in needs if one[0] > plan.at_s - longest_s]
        needs.append((plan.at_s, NodeCount(plan.prefill.need, plan.decode.need)))
    return replace(past, needs=needs, changes=[*past.changes, *changed], ceilings=_ceilings(past, plan, config))


@dataclass(frozen=True, slots=True)
class Needs:
    """How many nodes each pool needs for what is asked, or will be when a new node is ready."""

    prefill: Need
    decode: Need

    def of(self, role: Role) -> Need:
        return self.prefill if role == "prefill" else self.decode


def needs_of(past: Past, seen: Seen, config: AutoscalerConfig) -> Needs | None:
    """Return what is needed; None while nobody knows what a node does, or what requests are like."""
    rate = past.rates.prefill_tokens_per_s(config.rates)
    step = past.rates.step_time(config.rates)
    length = past.traits.output_tokens_per_request
    if not past.loads or rate is None or step is None or length is None:
        return None
    return Needs(_prefill(past, seen, config, rate), _decode(past, seen, config, step, length))


def _prefill(past: Past, seen: Seen, config: AutoscalerConfig, rate: float) -> Need:
    startup_s, pool = past.startup_s("prefill", config.rates), seen.prefill
    coming = _ahead(past, [one.prompt_tokens_per_s for one in past.loads], startup_s, config)
    uncached = past.traits.uncached_share * coming.enough
    bytes_per_token, path = past.rates.bytes_per_token, past.rates.path_bytes_per_s
    limited = min(rate, path / bytes_per_token) if path and bytes_per_token else rate
    backlog = sum(node.queued_tokens for node in pool.counters.values())
    late = max(0.0, backlog - pool.replicas * limited * config.targets.ttft_s) / CATCH_UP_S
    need = prefill_need(uncached + late, limited, past.traits.sizes, config.targets)
    notes = [need.why, f"{coming.level:.0f} prompt tokens/s arrive, {coming.enough:.0f} are expected in {startup_s:.0f} s"]
    if limited < rate:
        notes.append(f"the path to decode nodes carries {limited:.0f} of the {rate:.0f} tokens/s that a node computes")
    if late:
        notes.append(f"{backlog:.0f} tokens wait")
    return Need(need.nodes, "; ".join(notes))


def _decode(past: Past, seen: Seen, config: AutoscalerConfig, step: StepTime, length: float) -> Need:
    startup_s = past.startup_s("decode", config.rates)
    coming = _ahead(past, [one.requests_per_s for one in past.loads], startup_s, config)
    waiting = sum(node.num_waiting for node in seen.decode.counters.values())
    asked = coming.enough + waiting / CATCH_UP_S
    needs = (
        decode_need(asked * length, step, config.targets),
        memory_need(asked * (past.rates.block_s_per_request or 0.0), past.rates.blocks_per_node),
        _landing_need(past, coming),
    )
    return max(needs, key=lambda one: one.nodes)


def _landing_need(past: Past, coming: Forecast) -> Need:
    """Return how many decode nodes the KV of all prompts needs to arrive: what a path carries bounds prefill to decode."""
    rates, last = past.rates, past.loads[-1]
    if not rates.bytes_per_token or not rates.path_bytes_per_s or not last.requests:
        return Need(0, "nothing has crossed yet")
    tokens = past.traits.uncached_share * coming.enough * last.prompt_tokens / last.requests
    nodes = math.ceil(tokens * rates.bytes_per_token / rates.path_bytes_per_s)
    return Need(nodes, f"{tokens * rates.bytes_per_token / 1e6:.0f} MB/s of KV, {rates.path_bytes_per_s / 1e6:.0f} a node")


def _ahead(past: Past, values: Sequence[float], startup_s: float, config: AutoscalerConfig) -> Forecast:
    # Two looks together: what comes and goes faster is a matter of queues, not of nodes.
    both = zip(past.loads, [values[0], *values], values, strict=False)
    points = [Point(load.at_s, (before + now) / 2) for load, before, now in both]
    horizon_s = startup_s + config.pace.interval_s
    # A shortage lasts until more nodes have come: the longer that takes, the rarer it has to be.
    may_miss = (1 - config.targets.attainment) * SHORTAGE_S / horizon_s
    return forecast(points, horizon_s, caution=min(0.99, max(0.5, 1 - may_miss)))


def _paced(past: Past, seen: Seen, config: AutoscalerConfig, needs: Needs) -> Plan:
    held = NodeCount(*(max(needs.of(role).nodes, _held(past, seen, role, config)) for role in ROLES))
    limits = _limits(past, config)
    wanted = balance(held, limits)

    def plan(role: Role, _: Pool) -> PoolPlan:
        return _pool_plan(past, seen, config, role, needs.of(role), held.of(role), wanted.of(role))

    return _within_events(past, _both(seen, plan), config.pace)


def _pool_plan(past: Past, seen: Seen, config: AutoscalerConfig, role: Role, need: Need, held: int, wanted: int) -> PoolPlan:
    pool, pace = seen.pool(role), config.pace
    why = [need.why]
    if held > need.nodes and wanted > need.nodes:
        why.append(f"{held} were needed within the last {_hold_s(past, role, config, pool.replicas):.0f} s")
    if wanted < held:
        why.append(f"{held} are wanted, {wanted} can be had: {_what_limits(past, config, role, wanted)}")
    target = _step(pool.replicas, wanted, pace)
    if target != wanted:
        why.append(f"a step at a time, {wanted} in the end")
    target, hindrance = _allowed(pool, target, pace)
    return PoolPlan(pool.replicas, need.nodes, target, (*why, *([hindrance] if hindrance else ())))


def _allowed(pool: Pool, target: int, pace: PaceConfig) -> tuple[int, str]:
    """Return the target after what stands in its way, and what that is."""
    stuck = unschedulable(pool, pace)
    if stuck:
        fewer = max(0, pool.replicas - stuck)
        return min(target, fewer), f"no machine has had room for {stuck} of them for {pace.unschedulable_s:.0f} s: cancelled"
    if target < pool.replicas and (silent := pool.silent):
        return pool.replicas, f"not fewer while {silent[0].name} does not tell its metrics ({len(silent)} silent)"
    return target, ""


def unschedulable(pool: Pool, pace: PaceConfig) -> int:
    """Return how many pods no machine has had room for, for long enough to give them up."""
    return sum(pod.age_s >= pace.unschedulable_s for pod in pool.of(Phase.UNSCHEDULABLE))


def _what_limits(past: Past, config: AutoscalerConfig, role: Role, wanted: int) -> str:
    ceiling = past.ceilings.get(role)
    if ceiling and wanted >= ceiling.nodes:
        return "no machine had room for more"
    if wanted >= _config_of(config, role).max_nodes:
        return f"{role}.max_nodes"
    return "max_gpus, or what the other pool can have"


def _held(past: Past, seen: Seen, role: Role, config: AutoscalerConfig) -> int:
    if not past.loads or seen.at_s - past.loads[0].at_s < WARM_UP_S:
        return seen.pool(role).replicas
    since_s = seen.at_s - _hold_s(past, role, config, seen.pool(role).replicas)
    most = max((need.of(role) for at_s, need in past.needs if at_s > since_s), default=0)
    # Only what is there is held: a need that has passed brings nobody.
    return min(most, seen.pool(role).replicas)


def _hold_s(past: Past, role: Role, config: AutoscalerConfig, replicas: int) -> float:
    """Return for how long fewer nodes than `replicas` must have been enough."""
    # One node of a few is a larger share than a step down may be: it is held longer by as much.
    steps = max(1.0, 1 / (config.pace.max_down * max(1, replicas)))
    # A node that is idle for as long as another one would take to start costs as much as that start (ski rental).
    return max(steps * config.pace.hold_s, past.startup_s(role, config.rates))


def _limits(past: Past, config: AutoscalerConfig) -> Limits:
    return Limits(
        least=NodeCount(max(1, config.prefill.min_nodes), max(1, config.decode.min_nodes)),
        most=NodeCount(*(_most(past, config, role) for role in ROLES)),
        gpus=NodeCount(config.prefill.gpus_per_node, config.decode.gpus_per_node),
        max_gpus=config.max_gpus,
    )


def _most(past: Past, config: AutoscalerConfig, role: Role) -> int:
    ceiling, most = past.ceilings.get(role), _config_of(config, role).max_nodes
    return min(most, max(1, ceiling.nodes)) if ceiling else most


def _step(replicas: int, wanted: int, pace: PaceConfig) -> int:
    up = replicas + max(2, math.ceil(pace.max_up * replicas))
    down = replicas - max(1, math.floor(pace.max_down * replicas))
    return max(down, min(up, wanted))


def _within_events(past: Past, plan: Plan, pace: PaceConfig) -> Plan:
    """Leave out changes that would be too many for an hour; growing comes first."""
    left = pace.max_events_per_hour - len(past.changes)
    kept = math.floor(FOR_GROWTH * pace.max_events_per_hour)
    for role in sorted(ROLES, key=lambda role: plan.of(role).target < plan.of(role).replicas):
        one = plan.of(role)
        if not one.is_change:
            continue
        is_growth = one.target > one.replicas
        if left > (0 if is_growth else kept):
            left -= 1
        else:
            why = f"{one.target} in the end: {len(past.changes)} of {pace.max_events_per_hour} changes of this hour are made"
            plan = plan.with_pool(role, replace(one, target=one.replicas, why=(*one.why, why)))
    return plan


def _ceilings(past: Past, plan: Plan, config: AutoscalerConfig) -> dict[Role, Ceiling]:
    found = dict(past.ceilings)
    if past.last is None or plan.hold:
        return found
    for role in ROLES:
        if unschedulable(past.last.pool(role), config.pace):
            found[role] = Ceiling(plan.of(role).target, plan.at_s + config.pace.unschedulable_retry_s)
    return found


def _trouble(seen: Seen) -> str:
    if not seen.routers:
        silent = ", ".join(seen.silent_routers)
        return f"no router tells its metrics: {silent}" if silent else "there is no router"
    return ""


def _holding(seen: Seen, reason: str) -> Plan:
    return replace(_both(seen, lambda _, pool: PoolPlan(pool.replicas, 0, pool.replicas)), hold=reason)


def _asleep(past: Past, seen: Seen, config: AutoscalerConfig) -> Plan:
    """Wake both pools when somebody waits; where they may not sleep, at once."""
    if config.may_sleep and not past.is_woken:
        return _both(seen, lambda *_: PoolPlan(0, 0, 0, ("nobody asks",)))
    why = "woken: requests wait for nodes" if config.may_sleep else "there are none"
    fewest = {role: max(1, _config_of(config, role).min_nodes) for role in ROLES}
    return _both(seen, lambda role, _: PoolPlan(0, fewest[role], fewest[role], (why,)))


def _is_idle(past: Past, seen: Seen, pace: PaceConfig) -> bool:
    silent = [*seen.prefill.silent, *seen.decode.silent, *seen.silent_routers]
    return seen.at_s - past.asked_at_s >= pace.idle_s and not silent and not is_busy(seen)


def _sleep(past: Past, seen: Seen, pace: PaceConfig) -> Plan:
    if pace.max_events_per_hour - len(past.changes) < len(ROLES):
        return _holding(seen, "both pools may sleep, but the changes of this hour are made")
    why = f"nobody has asked for {pace.idle_s:.0f} s: both pools sleep"
    return _both(seen, lambda _, pool: PoolPlan(pool.replicas, 0, 0, (why,)))


def _awaiting_rates(past: Past, seen: Seen, config: AutoscalerConfig) -> Plan:
    """Keep what there is, within its bounds, until there is something to go by."""
    why = "what nodes do is not known before some requests have been served; `rates` could tell"
    kept = balance(NodeCount(seen.prefill.replicas, seen.decode.replicas), _limits(past, config))

    def keep(role: Role, pool: Pool) -> PoolPlan:
        target, hindrance = _allowed(pool, kept.of(role), config.pace)
        return PoolPlan(pool.replicas, pool.replicas, target, (why, *([hindrance] if hindrance else ())))

    return _within_events(past, _both(seen, keep), config.pace)


def _both(seen: Seen, plan: Callable[[Role, Pool], PoolPlan]) -> Plan:
    return Plan(seen.at_s, plan("prefill", seen.prefill), plan("decode", seen.decode))


def _config_of(config: AutoscalerConfig, role: Role) -> PoolConfig:
    return config.prefill if role == "prefill" else config.decode
