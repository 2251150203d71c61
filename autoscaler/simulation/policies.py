"""Who decides in a simulation: our own plan, fed with what nodes and routers would tell, or a fixed fleet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from twostep.autoscaler.config import AutoscalerConfig
from twostep.autoscaler.past import NodeCount, Past, learn
from twostep.autoscaler.plan import Plan, make_plan, remember
from twostep.autoscaler.seen import NodeCounters, Phase, Pod, Pool, Role, RouterCounters, Seen
from twostep.autoscaler.simulation.fleet import BLOCK_TOKENS, Fleet, SimulatedNode

SIZES = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


class Fixed:
    """The same fleet all the time."""

    interval_s = 3600.0

    def __init__(self, nodes: NodeCount) -> None:
        self._nodes = nodes

    def decide(self, fleet: Fleet) -> NodeCount:
        del fleet
        return self._nodes


class Ours:
    """The autoscaler's plan."""

    def __init__(self, config: AutoscalerConfig) -> None:
        self.interval_s = config.pace.interval_s
        self.plans: list[Plan] = []
        self._config = config
        self._past = Past()
        self._sizes = Sizes()

    def decide(self, fleet: Fleet) -> NodeCount:
        fleet.settle()
        seen = observe(fleet, self._sizes)
        past = learn(self._past, seen)
        plan = make_plan(past, seen, self._config)
        self._past = remember(past, plan, self._config)
        self.plans.append(plan)
        return NodeCount(plan.prefill.target, plan.decode.target)


@dataclass(slots=True)
class Sizes:
    """Counts prompts as the router's histogram does, from where it was last asked."""

    counted: int = 0
    cumulative: tuple[float, ...] = (0.0,) * (len(SIZES) + 1)

    def of(self, fleet: Fleet) -> Mapping[float, float]:
        bounds = (*map(float, SIZES), float("inf"))
        for one in fleet.served[self.counted :]:
            tokens = one.request.prompt_tokens
            self.cumulative = tuple(count + (tokens <= bound) for count, bound in zip(self.cumulative, bounds, strict=True))
        self.counted = len(fleet.served)
        return dict(zip(bounds, self.cumulative, strict=True))


def observe(fleet: Fleet, sizes: Sizes) -> Seen:
    """Return what the autoscaler would see of the fleet now."""
    waiting_tokens = sum(one.request.prompt_tokens for one in fleet.waiting)
    router = RouterCounters(
        requests=fleet.num_arrived,
        prompt_tokens=fleet.arrived_tokens,
        sizes=sizes.of(fleet),
        answers=fleet.num_answered,
        output_tokens=fleet.answered_tokens,
    )
    # Whoever finds a prefill node free waits for a decode node's memory.
    waits_for_memory = any(node.free_at_s <= fleet.now_s for node in fleet.ready("prefill"))
    queued = 0 if waits_for_memory else waiting_tokens / max(1, len(fleet.ready("prefill")))
    reserving = len(fleet.waiting) / max(1, len(fleet.ready("decode"))) if waits_for_memory else 0
    prefill = _pool(fleet, "prefill", lambda node: _prefill_counters(fleet, node, queued))
    decode = _pool(fleet, "decode", lambda node: _decode_counters(fleet, node, reserving))
    return Seen(fleet.now_s, prefill, decode, {"router": router})


def _pool(fleet: Fleet, role: Role, counters: Callable[[SimulatedNode], NodeCounters]) -> Pool:
    pods = [_pod(fleet, node) for node in fleet.nodes[role]]
    told = {node.uid: counters(node) for node in fleet.ready(role)}
    return Pool(fleet.count(role), pods, told)


def _pod(fleet: Fleet, node: SimulatedNode) -> Pod:
    if node.is_leaving:
        return Pod(node.uid, node.uid, Phase.LEAVING, fleet.now_s - node.born_s)
    if node.ready_s > fleet.now_s:
        return Pod(node.uid, node.uid, Phase.STARTING, fleet.now_s - node.born_s)
    startup_s = node.ready_s - node.born_s
    return Pod(node.uid, node.uid, Phase.READY, fleet.now_s - node.born_s, startup_s or fleet.startup_s)


def _prefill_counters(fleet: Fleet, node: SimulatedNode, waiting_tokens: float) -> NodeCounters:
    left = max(0.0, node.free_at_s - fleet.now_s) * fleet.model.prefill_tokens_per_s
    return NodeCounters(
        computed_tokens=node.computed_tokens,
        steps=node.computed_tokens,
        step_s=node.busy_s,
        queued_tokens=left + waiting_tokens,
        num_running=float(left > 0),
    )


def _decode_counters(fleet: Fleet, node: SimulatedNode, reserving: float) -> NodeCounters:
    return NodeCounters(
        decoded_tokens=node.decoded_tokens,
        steps=node.whole_steps,
        step_s=node.decode_busy_s,
        num_running=len(node.running) + node.reserved,
        num_waiting=reserving,
        free_blocks=(fleet.model.kv_tokens - node.kv_tokens) / BLOCK_TOKENS,
        total_blocks=fleet.model.kv_tokens / BLOCK_TOKENS,
    )
