"""How many nodes a load needs: prefill by the wait for a free node, decode by sequences that run at once. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from twostep.autoscaler.config import TargetsConfig
from twostep.autoscaler.rates import StepTime

MOST_NODES = 10_000
KV_SHARE = 0.95
"""The share of its KV blocks that a decode node should have to give out."""


@dataclass(frozen=True, slots=True)
class Need:
    """`nodes`, and in a sentence why not fewer."""

    nodes: int
    why: str


def prefill_need(tokens_per_s: float, node_tokens_per_s: float, sizes: Mapping[float, float], targets: TargetsConfig) -> Need:
    """Return the fewest prefill nodes with which enough requests have their first token in time.

    A prompt waits for a free node (Erlang C, with the correction of Allen and Cunneen for sizes that differ) and is then
    computed by it. `sizes` counts prompts by their upper bound in tokens. Prompts that take longer than the target by
    themselves cannot be helped by more nodes and are left out.
    """
    if tokens_per_s <= 0:
        return Need(0, "no prompt tokens arrive")
    mix = _mix(sizes, node_tokens_per_s) or [(1.0, targets.ttft_s / 2)]
    mean_s = sum(share * own_s for share, own_s in mix)
    variation = sum(share * own_s * own_s for share, own_s in mix) / mean_s**2 - 1
    busy = tokens_per_s / node_tokens_per_s
    helped = [(share, targets.ttft_s - own_s) for share, own_s in mix if own_s < targets.ttft_s]
    may_miss = (1 - targets.attainment) * sum(share for share, _ in helped)
    for nodes in range(math.floor(busy) + 1, MOST_NODES):
        drain_s = mean_s / (nodes - busy) * (1 + variation) / 2
        late = erlang_c(nodes, busy) * sum(share * math.exp(-spare_s / drain_s) for share, spare_s in helped)
        if late <= may_miss:
            return Need(
                nodes, f"{tokens_per_s:.0f} uncached tokens/s, {node_tokens_per_s:.0f} a node, TTFT {targets.ttft_s:g} s"
            )
    return Need(MOST_NODES, f"{tokens_per_s:.0f} uncached tokens/s are beyond all bounds")


def decode_need(tokens_per_s: float, step: StepTime, targets: TargetsConfig) -> Need:
    """Return the fewest decode nodes that draw so many tokens within the target.

    How many sequences run at any moment varies like the number of busy places where nobody waits (M/G/inf): by its square
    root, on which a little is laid up.
    """
    if tokens_per_s <= 0:
        return Need(0, "no tokens are asked for")
    batch = max(1.0, (targets.tpot_s - step.base_s) / step.sequence_s) if step.sequence_s else math.inf
    running = tokens_per_s * max(targets.tpot_s, step.at(1))
    nodes = math.ceil((running + math.sqrt(running)) / batch) if math.isfinite(batch) else 1
    return Need(nodes, f"{tokens_per_s:.0f} tokens/s, {batch / targets.tpot_s:.0f} a node within TPOT {targets.tpot_s:g} s")


def memory_need(blocks: float, blocks_per_node: float) -> Need:
    """Return the fewest decode nodes that hold so many KV blocks, and a little more."""
    if blocks <= 0 or blocks_per_node <= 0:
        return Need(0, "no KV blocks are taken")
    nodes = math.ceil(blocks / (KV_SHARE * blocks_per_node))
    return Need(nodes, f"{blocks:.0f} KV blocks taken or waited for, {blocks_per_node:.0f} on a node")


def erlang_c(servers: int, load: float) -> float:
    """Return the probability that all of `servers` are busy, `load` of them being busy on average; 1 when it is too much."""
    if load >= servers:
        return 1.0
    blocked = 1.0
    for server in range(1, servers + 1):
        blocked = load * blocked / (server + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def _mix(sizes: Mapping[float, float], node_tokens_per_s: float) -> list[tuple[float, float]]:
    """Return the share of each size and how long it takes; of a bound's prompts, the middle between it and the one below."""
    total = sum(sizes.values())
    below, mix = 0.0, []
    for bound in sorted(sizes):
        tokens = (below + bound) / 2 if math.isfinite(bound) else 1.5 * below
        if sizes[bound] > 0:
            mix.append((sizes[bound] / total, tokens / node_tokens_per_s))
        below = bound
    return mix
