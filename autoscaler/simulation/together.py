"""Nodes that do both, prefill and decode, in simulated time: what separate pools have to be better than.

A node computes prompts in chunks beside its decode steps, as much in each step as lets it end within the target (as Sarathi
does), and takes the next prompt, first come first served, when it has room for its KV. A request goes to the node with the
least left to do.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from twostep.autoscaler.simulation.fleet import NodeModel, Outcome, Served
from twostep.autoscaler.simulation.trace import TraceRequest

LEAST_CHUNK = 32
"""Prompt tokens that a step computes at least, so that prompts get on where decode alone takes all the time there is."""


@dataclass(slots=True, eq=False)
class WholeNode:
    """`prompts` wait, with the tokens that each has left; the first of them is computed once it `has_room`."""

    at_s: float = 0.0
    steps: float = 0.0
    kv_tokens: int = 0
    has_room: bool = False
    prompts: deque[tuple[Served, float]] = field(default_factory=deque)
    running: list[tuple[float, int, Served]] = field(default_factory=list)
    version: int = 0

    @property
    def load(self) -> float:
        """Return the tokens whose KV is here, or will be."""
        return self.kv_tokens + sum(left for _, left in self.prompts)


class Together:
    """So many nodes that all do both. `run` serves the whole trace."""

    def __init__(self, trace: Sequence[TraceRequest], model: NodeModel, num_nodes: int, tpot_s: float) -> None:
        self._trace = trace
        self._model = model
        self._tpot_s = tpot_s
        self._nodes = [WholeNode() for _ in range(num_nodes)]
        self._events: list[tuple[float, int, WholeNode, int]] = []
        self._order = itertools.count()

    def run(self, ttft_s: float, tpot_s: float) -> Outcome:
        served = [Served(request) for request in self._trace]
        for one in served:
            self._until(one.request.at_s)
            node = min(self._nodes, key=lambda node: node.load)
            self._advance(node, one.request.at_s)
            node.prompts.append((one, float(one.request.prompt_tokens)))
            self._go_on(node)
        self._until(float("inf"))
        end_s = self._trace[-1].at_s
        in_time = sum(one.is_in_time(ttft_s, tpot_s) for one in served)
        return Outcome(in_time / len(served), end_s * len(self._nodes), 0, end_s)

    def _until(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            at_s, _, node, version = heapq.heappop(self._events)
            if version == node.version:
                self._advance(node, at_s)
                self._go_on(node)

    def _pace(self, node: WholeNode) -> tuple[float, float]:
        """Return how long a step takes now, and how many prompt tokens it computes."""
        rate, step, batch = self._model.prefill_tokens_per_s, self._model.step, len(node.running)
        if not node.has_room:
            return (step.at(batch) if batch else 0.0), 0.0
        # The weights are read once for both: what a chunk computes hides that, at best entirely.
        sequences_s = batch * step.sequence_s
        chunk_s = max(LEAST_CHUNK / rate, self._tpot_s - sequences_s)
        return sequences_s + max(chunk_s, step.base_s), chunk_s * rate

    def _advance(self, node: WholeNode, now_s: float) -> None:
        step_s, chunk = self._pace(node)
        if step_s:
            steps = (now_s - node.at_s) / step_s
            node.steps += steps
            if node.has_room:
                one, left = node.prompts[0]
                node.prompts[0] = (one, left - steps * chunk)
        node.at_s = now_s

    def _go_on(self, node: WholeNode) -> None:
        """End what has ended, begin what can begin, and wake when the next thing ends."""
        if node.has_room and node.prompts[0][1] <= 1e-6:
            one, _ = node.prompts.popleft()
            one.first_s = node.at_s
            heapq.heappush(node.running, (node.steps + one.request.output_tokens - 1, next(self._order), one))
            node.has_room = False
        while node.running and node.running[0][0] <= node.steps + 1e-6:
            one = heapq.heappop(node.running)[2]
            one.last_s = node.at_s
            node.kv_tokens -= one.request.prompt_tokens + one.request.output_tokens
        self._admit(node)
        node.version += 1
        step_s, chunk = self._pace(node)
        ends = [(node.running[0][0] - node.steps) * step_s] if node.running else []
        ends += [node.prompts[0][1] / chunk * step_s] if node.has_room else []
        if ends:
            heapq.heappush(self._events, (node.at_s + max(0.0, min(ends)), next(self._order), node, node.version))

    def _admit(self, node: WholeNode) -> None:
        if node.has_room or not node.prompts:
            return
        request = node.prompts[0][0].request
        needs = request.prompt_tokens + request.output_tokens
        if node.kv_tokens + needs <= self._model.kv_tokens or not node.running:
            node.kv_tokens += needs
            node.has_room = True
