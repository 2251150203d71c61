"""Clusters at rest and at work, as the autoscaler sees them: what tables of plans start from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from twostep.autoscaler.config import AutoscalerConfig, PoolConfig, RatesConfig, RoutersConfig, TargetsConfig
from twostep.autoscaler.demand import Load, Traits
from twostep.autoscaler.past import Past
from twostep.autoscaler.rates import Rates
from twostep.autoscaler.seen import NodeCounters, Phase, Pod, Pool, RouterCounters, Seen

RATES = RatesConfig(prefill_tokens_per_s=1000.0, decode_step_s=0.02, decode_sequence_s=0.001, startup_s=60.0)
NOW = 10_000.0


def config(*, prefill: Mapping[str, Any] = {}, decode: Mapping[str, Any] = {}, **more: Any) -> AutoscalerConfig:
    pools = {
        role: PoolConfig(**{"name": f"twostep-{role}", "selector": f"role={role}", "max_nodes": 20, **given})
        for role, given in (("prefill", prefill), ("decode", decode))
    }
    settings = {"targets": TargetsConfig(ttft_s=2.0, tpot_s=0.05), "rates": RATES, **more}
    return AutoscalerConfig(**pools, routers=RoutersConfig(selector="role=router"), **settings)


def ready(*names: str) -> list[Pod]:
    return [Pod(name, name, Phase.READY, age_s=5000.0, startup_s=60.0, address="h:1") for name in names]


def pool(prefix: str, num: int, *, more: Sequence[Pod] = (), silent: int = 0, **counters: float) -> Pool:
    """Return a pool of `num` ready nodes, all with these counters, of which the last `silent` tell nothing."""
    pods = ready(*(f"{prefix}{index}" for index in range(num)))
    told = {pod.uid: NodeCounters(total_blocks=1000.0, free_blocks=900.0, **counters) for pod in pods[: num - silent]}
    return Pool(num + len(more), [*pods, *more], told)


def seen(prefill: Pool | int, decode: Pool | int, *, at_s: float = NOW, **router: float) -> Seen:
    pools = [pool(name, one) if isinstance(one, int) else one for name, one in (("p", prefill), ("d", decode))]
    return Seen(at_s, *pools, {"r": RouterCounters(**router)})  # type: ignore[arg-type]


def steady(
    tokens_per_s: float, requests_per_s: float, *, minutes: int = 60, length: float = 100.0, last: Seen | None = None
) -> Past:
    """Return a past in which so much has arrived all the time, and nothing was ever changed."""
    loads = [Load(NOW - 15.0 * step, 15.0, 15.0 * requests_per_s, 15.0 * tokens_per_s) for step in reversed(range(4 * minutes))]
    size = tokens_per_s / requests_per_s if requests_per_s else 1.0
    traits = Traits(answers=100.0, output_tokens=100.0 * length, sizes={2 * size: 100.0})
    return Past(loads=loads, traits=traits, rates=Rates(blocks_per_node=1000.0), last=last, asked_at_s=NOW)


def changed_at(past: Past, *times: float) -> Past:
    return replace(past, changes=times)
