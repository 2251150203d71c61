"""What a HorizontalPodAutoscaler does with the metrics that the chart gives it: prefill by who waits, decode by memory taken.

As Kubernetes 1.37 does: the mean over ready pods against the target, 10 % tolerance, at once up (by twice, or four pods), and
down to the highest of the last ten minutes, as in the chart.
"""

import math
from collections import deque

from twostep.autoscaler.past import NodeCount
from twostep.autoscaler.simulation.fleet import Fleet

TOLERANCE = 0.1
STABILIZATION_S = 600.0
WAITING_TARGET = 4.0
MEMORY_TARGET = 0.7
MOST = 60


class Hpa:
    """Two of them, one for each pool."""

    interval_s = 15.0

    def __init__(self) -> None:
        self._prefill: deque[tuple[float, int]] = deque()
        self._decode: deque[tuple[float, int]] = deque()

    def decide(self, fleet: Fleet) -> NodeCount:
        prefill, decode = fleet.ready("prefill"), fleet.ready("decode")
        waiting = len(fleet.waiting) / max(1, len(prefill))
        taken = sum(node.kv_tokens for node in decode) / max(1, len(decode)) / fleet.model.kv_tokens
        return NodeCount(
            _stabilized(self._prefill, fleet.now_s, _wanted(fleet.count("prefill"), waiting / WAITING_TARGET)),
            _stabilized(self._decode, fleet.now_s, _wanted(fleet.count("decode"), taken / MEMORY_TARGET)),
        )


def _wanted(replicas: int, usage: float) -> int:
    if abs(usage - 1) <= TOLERANCE:
        return replicas
    most = min(MOST, max(2 * replicas, replicas + 4))
    return max(1, min(most, math.ceil(replicas * usage)))


def _stabilized(recent: deque[tuple[float, int]], now_s: float, wanted: int) -> int:
    recent.append((now_s, wanted))
    while recent[0][0] <= now_s - STABILIZATION_S:
        recent.popleft()
    return max(nodes for _, nodes in recent)
