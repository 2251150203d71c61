"""Replays a trace in simulated time: real placement, index, engines and schedulers; only the time of a step is made up.

An engine commits a step when it begins; what it brought counts from the step's end. So a block may be hit up to one step early.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from twostep.benchmarks.placement_rows.constants import Constants
from twostep.benchmarks.placement_rows.node import FIRST, ReplayNode
from twostep.benchmarks.placement_rows.policies import Policy, new_placer
from twostep.benchmarks.placement_rows.trace import Arrival
from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.engine.engine import StepResult
from twostep.router.placement.choose import Placement
from twostep.router.placement.fleet import Fleet
from twostep.router.placement.node_view import Typical
from twostep.router.placement.placer import Errand
from twostep.router.placement.prefix_index import PrefixIndex
from twostep.router.placement.prompt_hashes import Naming

INDEX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """How many nodes of each kind; without prefill nodes decode nodes compute prompts too."""

    num_prefill: int
    num_decode: int


@dataclass(slots=True)
class Served:
    """One request of a replay; moments in simulated seconds."""

    id: RequestId
    num_prompt_tokens: int
    placement: Placement
    arrived: float
    num_outputs: int
    cached_tokens: int = 0
    moments: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.moments[0] - self.arrived

    @property
    def tpot_s(self) -> float:
        return (self.moments[-1] - self.moments[0]) / (self.num_outputs - 1)


class Replay:
    """One run over `arrivals`; `served` are the requests, all answered to the end."""

    def __init__(self, arrivals: Sequence[Arrival], layout: Layout, policy: Policy, constants: Constants) -> None:
        self.now = 0.0
        self.served: dict[RequestId, Served] = {}
        self._constants = constants
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._decode = [ReplayNode("decode", number, constants, []) for number in range(layout.num_decode)]
        peers = [node.ref for node in self._decode]
        self._prefill = [ReplayNode("prefill", number, constants, peers) for number in range(layout.num_prefill)]
        self._nodes = {node.ref: node for node in (*self._prefill, *self._decode)}
        self._fleet, self._index, self._typical = Fleet(), PrefixIndex(INDEX_BYTES), Typical()
        placer = new_placer(self._fleet, self._index, lambda: self.now, has_prefill=layout.num_prefill > 0)
        self._place = policy(self._fleet, self._index, placer)
        self._num_left = len(arrivals)
        for node in self._nodes.values():
            self._index.meet(node.ref, Naming.of(node.runner.fingerprint, node.runner.geometry))
            self._beat(node)
        for number, arrival in enumerate(arrivals):
            self._at(arrival.at_s, lambda arrival=arrival, number=number: self._arrive(arrival, number))  # type: ignore[misc]

    def run(self) -> None:
        while self._num_left:
            self.now, _, happen = heapq.heappop(self._events)
            happen()

    def _at(self, moment: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), happen))

    def _beat(self, node: ReplayNode) -> None:
        node.beat(self.now)
        status = node.status
        self._typical = Typical(status.prefill_curve or self._typical.curve, status.step_pace or self._typical.step)
        self._index.hear(node.ref, node.engine.block_news(self._index.next_event(node.ref)))
        self._changed(node)
        self._at(self.now + self._constants.beat_s, lambda: self._beat(node))

    def _changed(self, node: ReplayNode) -> None:
        self._fleet.put(node.view(self._typical))

    def _arrive(self, arrival: Arrival, number: int) -> None:
        num_outputs = max(2, arrival.num_outputs)
        stop = StopRules(max_tokens=1 + -(-(num_outputs - 1) // self._constants.steps_at_once))
        request = Request(RequestId(str(number)), arrival.prompt(), SamplingParams(seed=0), stop)
        placement = self._place(Errand.of(request))
        served = self.served[request.id] = Served(request.id, len(request.prompt), placement, self.now, num_outputs)
        decode = self._nodes[placement.decode.ref]
        decode.send(request, placement.decode_work, self.now)
        if placement.prefill:
            prefill = self._nodes[placement.prefill.ref]
            prefill.load.expect(request.id, placement.prefill_work, self.now)
            self._changed(prefill)
        self._changed(decode)
        decode.wait(request, served)
        self._reserve(decode)

    def _reserve(self, node: ReplayNode) -> None:
        """Give room to those that wait, in order; a decode node's reservation lets the prefill begin."""
        while node.waiting:
            prepared, served = node.waiting[0]
            cached = node.try_reserve(prepared)
            if cached is None:
                return
            node.waiting.popleft()
            prefill = served.placement.prefill
            if node in self._prefill:
                served.cached_tokens = cached
                node.engine.start(served.id, attempt=FIRST, max_draws=1)
                self._work(node)
            elif prefill is None:
                served.cached_tokens = cached
                node.engine.start(served.id, attempt=FIRST)
                self._work(node)
            else:
                source = self._nodes[prefill.ref]
                source.send(prepared.request, served.placement.prefill_work, self.now)
                source.wait(prepared.request, served)
                self._reserve(source)

    def _work(self, node: ReplayNode) -> None:
        if node.is_stepping:
            return
        result = node.step(self.now)
        if result:
            node.is_stepping = True
            self._at(node.runner.now, lambda: self._stepped(node, result))

    def _stepped(self, node: ReplayNode, result: StepResult) -> None:
        node.is_stepping = False
        for event in result.events:
            served = self.served[event.request]
            if node in self._prefill:
                self._hand_over(node, served, event.token)
                continue
            self._note_token(node, served)
            if event.finish:
                self._end(node, served)
        self._reserve(node)
        self._work(node)

    def _hand_over(self, source: ReplayNode, served: Served, token: int) -> None:
        """The KV is pushed while it is computed: the last layer group of the last chunk is left."""
        own = self._constants
        source.engine.release(served.id)
        source.load.remove(served.id, self.now)
        self._changed(source)
        missing = served.num_prompt_tokens - served.placement.decode_cached_tokens
        left_bytes = min(missing, own.token_budget) * own.token_bytes * 2 / 80
        self._at(self.now + own.handoff_s + left_bytes / own.path_bytes_per_s, lambda: self._attach(served, token))

    def _attach(self, served: Served, token: int) -> None:
        node = self._nodes[served.placement.decode.ref]
        finish = node.engine.attach(served.id, token, attempt=FIRST)
        self._note_token(node, served)
        if finish:
            self._end(node, served)
        self._work(node)

    def _note_token(self, node: ReplayNode, served: Served) -> None:
        if not served.moments:
            node.load.computed(served.id, self.now)
            self._changed(node)
        served.moments.append(self.now)

    def _end(self, node: ReplayNode, served: Served) -> None:
        node.engine.release(served.id)
        node.load.remove(served.id, self.now)
        self._changed(node)
        self._num_left -= 1
