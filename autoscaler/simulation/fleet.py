"""Two pools of nodes that serve a trace in simulated time, and what it costs: requests by the event, decode by the step.

A request waits, first come first served, for a decode node with room for its KV and a free prefill node; the prefill node
computes its prompt alone; the decode node's steps take longer the more sequences they hold. Nodes take their time to start,
and finish what they have before they go.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from twostep.autoscaler.past import NodeCount
from twostep.autoscaler.rates import StepTime
from twostep.autoscaler.seen import Role
from twostep.autoscaler.simulation.trace import TraceRequest

BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True)
class NodeModel:
    """What a node does. `kv_tokens` are what a decode node has room for; `transfer_s` is what the handoff adds to the TTFT."""

    prefill_tokens_per_s: float
    step: StepTime
    kv_tokens: int
    transfer_s: float = 0.0


@dataclass(slots=True)
class Served:
    """What became of a request; `first_s` and `last_s` are None while its first and last token have not come."""

    request: TraceRequest
    first_s: float | None = None
    last_s: float | None = None

    def is_in_time(self, ttft_s: float, tpot_s: float) -> bool:
        if self.first_s is None or self.last_s is None:
            return False
        rest = max(1, self.request.output_tokens - 1)
        return self.first_s - self.request.at_s <= ttft_s and (self.last_s - self.first_s) / rest <= tpot_s


@dataclass(slots=True, eq=False)
class SimulatedNode:
    """A node of either pool. `free_at_s` is when a prefill node has computed what it has."""

    uid: str
    born_s: float
    ready_s: float
    is_leaving: bool = False
    free_at_s: float = 0.0
    steps: float = 0.0
    stepped_at_s: float = 0.0
    kv_tokens: int = 0
    reserved: int = 0
    running: list[tuple[float, int, Served]] = field(default_factory=list)
    """A heap of sequences, by the step after which each has its last token."""
    version: int = 0
    computed_tokens: float = 0.0
    busy_s: float = 0.0
    decoded_tokens: float = 0.0
    decode_busy_s: float = 0.0
    whole_steps: float = 0.0


class Policy(Protocol):
    """Decides how many nodes there are to be."""

    interval_s: float

    def decide(self, fleet: "Fleet") -> NodeCount:
        """Return how many nodes each pool is to have from now on; called every `interval_s`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`node_s` is the time of all nodes from their creation to their end; `changes` counts changes of either pool."""

    attainment: float
    node_s: float
    changes: int
    duration_s: float

    @property
    def node_hours(self) -> float:
        return self.node_s / 3600

    @property
    def changes_per_hour(self) -> float:
        return self.changes / (self.duration_s / 3600)


class Fleet:
    """`run` serves the whole trace. What policies may look at is public."""

    def __init__(self, trace: Sequence[TraceRequest], model: NodeModel, startup_s: float, first: NodeCount) -> None:
        self.now_s = 0.0
        self.model = model
        self.startup_s = startup_s
        self.waiting: deque[Served] = deque()
        self.nodes: dict[Role, list[SimulatedNode]] = {"prefill": [], "decode": []}
        self.served: list[Served] = []
        self.num_arrived = 0
        self.arrived_tokens = 0
        self.num_first_tokens = 0
        self.num_answered = 0
        self.answered_tokens = 0
        self.num_changes = 0
        self.moments: list[tuple[float, NodeCount]] = []
        self._trace = trace
        self._arrivals = iter(trace)
        self._node_s = 0.0
        self._events: list[tuple[float, int, int, object, int]] = []
        self._order = itertools.count()
        self._names = itertools.count()
        for role in self.nodes:
            for _ in range(first.of(role)):
                self._create(role, startup_s=0.0)

    def run(self, policy: Policy, ttft_s: float, tpot_s: float, *, from_s: float = 0.0) -> Outcome:
        """Serve the trace, asking `policy` at each interval. What was before `from_s` does not count, nor does what it costs
        to finish the last requests."""
        end_s = self._trace[-1].at_s
        self._push_arrival()
        self._push(0.0, _DECIDE, None)
        self._until(from_s, policy)
        cost_s, changes = self._cost_so_far(), self.num_changes
        self._until(end_s, policy)
        cost_s, changes = self._cost_so_far() - cost_s, self.num_changes - changes
        self._until(math.inf, policy)
        counted = [one for one in self.served if one.request.at_s >= from_s]
        in_time = sum(one.is_in_time(ttft_s, tpot_s) for one in counted)
        return Outcome(in_time / len(counted), cost_s, changes, end_s - from_s)

    def _until(self, until_s: float, policy: Policy) -> None:
        """Let everything happen that happens until then. Nobody decides after the last request has come."""
        end_s = self._trace[-1].at_s
        while self._events and self._events[0][0] <= until_s:
            self.now_s, kind, _, what, version = heapq.heappop(self._events)
            if kind == _DECIDE and self.now_s <= end_s:
                self._decide(policy)
            else:
                self._handle(kind, what, version)
            self._dispatch()
        self.now_s = min(until_s, max(self.now_s, end_s))

    def count(self, role: Role) -> int:
        """Return how many nodes the pool was told to have."""
        return sum(not node.is_leaving for node in self.nodes[role])

    def ready(self, role: Role) -> list[SimulatedNode]:
        return [node for node in self.nodes[role] if not node.is_leaving and node.ready_s <= self.now_s]

    def settle(self) -> None:
        """Bring every decode node's counters up to now."""
        for node in self.nodes["decode"]:
            self._advance(node)

    def _handle(self, kind: int, what: object, version: int) -> None:
        if kind == _ARRIVE and isinstance(what, TraceRequest):
            self._arrive(what)
        elif kind == _COMPUTED and isinstance(what, tuple):
            self._computed(*what)
        elif kind == _STEPPED and isinstance(what, SimulatedNode) and version == what.version:
            self._stepped(what)

    def _arrive(self, request: TraceRequest) -> None:
        self.num_arrived += 1
        self.arrived_tokens += request.prompt_tokens
        one = Served(request)
        self.served.append(one)
        self.waiting.append(one)
        self._push_arrival()

    def _dispatch(self) -> None:
        while self.waiting:
            request = self.waiting[0].request
            prefill = next((node for node in self.ready("prefill") if node.free_at_s <= self.now_s), None)
            decode = self._roomiest(request.prompt_tokens + request.output_tokens)
            if prefill is None or decode is None:
                return
            self._place(self.waiting.popleft(), prefill, decode)

    def _roomiest(self, tokens: int) -> SimulatedNode | None:
        with_room = [node for node in self.ready("decode") if node.kv_tokens + tokens <= self.model.kv_tokens]
        return min(with_room, key=lambda node: len(node.running) + node.reserved, default=None)

    def _place(self, one: Served, prefill: SimulatedNode, decode: SimulatedNode) -> None:
        compute_s = one.request.prompt_tokens / self.model.prefill_tokens_per_s
        prefill.free_at_s = self.now_s + compute_s
        prefill.computed_tokens += one.request.prompt_tokens
        prefill.busy_s += compute_s
        decode.kv_tokens += one.request.prompt_tokens + one.request.output_tokens
        decode.reserved += 1
        self._push(self.now_s + compute_s, _COMPUTED, (one, prefill, decode))

    def _computed(self, one: Served, prefill: SimulatedNode, decode: SimulatedNode) -> None:
        self._let_go("prefill", prefill)
        self._advance(decode)
        decode.reserved -= 1
        one.first_s = self.now_s + self.model.transfer_s
        self.num_first_tokens += 1
        heapq.heappush(decode.running, (decode.steps + one.request.output_tokens - 1, next(self._order), one))
        self._await_step(decode)

    def _stepped(self, node: SimulatedNode) -> None:
        self._advance(node)
        while node.running and node.running[0][0] <= node.steps + 1e-6:
            one = heapq.heappop(node.running)[2]
            one.last_s = self.now_s + self.model.transfer_s
            node.kv_tokens -= one.request.prompt_tokens + one.request.output_tokens
            self.num_answered += 1
            self.answered_tokens += one.request.output_tokens
        self._await_step(node)
        self._let_go("decode", node)

    def _advance(self, node: SimulatedNode) -> None:
        """Count the steps since the last time that anything changed on this node."""
        batch, passed_s = len(node.running), self.now_s - node.stepped_at_s
        if batch and passed_s > 0:
            steps = passed_s / self.model.step.at(batch)
            node.steps += steps
            node.whole_steps += steps
            node.decoded_tokens += steps * batch
            node.decode_busy_s += passed_s
        node.stepped_at_s = self.now_s

    def _await_step(self, node: SimulatedNode) -> None:
        node.version += 1
        if node.running:
            left = max(0.0, node.running[0][0] - node.steps)
            self._push(self.now_s + left * self.model.step.at(len(node.running)), _STEPPED, node, node.version)

    def _decide(self, policy: Policy) -> None:
        wanted = policy.decide(self)
        for role in self.nodes:
            self._scale(role, wanted.of(role))
        self.moments.append((self.now_s, wanted))
        self._push(self.now_s + policy.interval_s, _DECIDE, None)

    def _scale(self, role: Role, wanted: int) -> None:
        have = self.count(role)
        self.num_changes += wanted != have
        for _ in range(have, wanted):
            self._create(role, self.startup_s)
        # As Kubernetes does: those that are not ready first, then the one that has least to lose.
        staying = [node for node in self.nodes[role] if not node.is_leaving]
        for node in sorted(staying, key=lambda node: (node.ready_s <= self.now_s, self._loss(node)))[: max(0, have - wanted)]:
            node.is_leaving = True
            self._let_go(role, node)

    def _loss(self, node: SimulatedNode) -> float:
        return len(node.running) + node.reserved + max(0.0, node.free_at_s - self.now_s)

    def _create(self, role: Role, startup_s: float) -> None:
        node = SimulatedNode(f"{role}-{next(self._names)}", self.now_s, self.now_s + startup_s, stepped_at_s=self.now_s)
        self.nodes[role].append(node)
        self._push(node.ready_s, _READY, node)

    def _let_go(self, role: Role, node: SimulatedNode) -> None:
        is_idle = not node.running and not node.reserved and node.free_at_s <= self.now_s
        if node.is_leaving and is_idle and node in self.nodes[role]:
            self.nodes[role].remove(node)
            self._node_s += self.now_s - node.born_s

    def _cost_so_far(self) -> float:
        alive = sum(self.now_s - node.born_s for nodes in self.nodes.values() for node in nodes)
        return self._node_s + alive

    def _push_arrival(self) -> None:
        request = next(self._arrivals, None)
        if request is not None:
            self._push(request.at_s, _ARRIVE, request)

    def _push(self, at_s: float, kind: int, what: object, version: int = 0) -> None:
        heapq.heappush(self._events, (at_s, kind, next(self._order), what, version))


_COMPUTED, _STEPPED, _READY, _ARRIVE, _DECIDE = range(5)
