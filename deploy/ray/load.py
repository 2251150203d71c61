"""How full a node is, from what it tells at /metrics: 1 where one of its targets is reached. Pure."""

from twostep.autoscaler.demand import grown
from twostep.autoscaler.seen import NodeCounters
from twostep.deploy.ray.config import Role, TargetsConfig


def load_of(role: Role, before: NodeCounters, now: NodeCounters, elapsed_s: float, targets: TargetsConfig) -> float:
    """Return how full the node is that has told `before` and, `elapsed_s` later, `now`."""
    return _prefill_load(before, now, elapsed_s, targets) if role == "prefill" else _decode_load(now, targets)


def _prefill_load(before: NodeCounters, now: NodeCounters, elapsed_s: float, targets: TargetsConfig) -> float:
    busy = grown(before.step_s, now.step_s) / elapsed_s
    return max(busy / targets.prefill_busy, now.queued_tokens / targets.prefill_queued_tokens)


def _decode_load(now: NodeCounters, targets: TargetsConfig) -> float:
    held = 1 - now.free_blocks / now.total_blocks
    return max(held / targets.decode_kv, (now.num_running + now.num_waiting) / targets.decode_requests)
