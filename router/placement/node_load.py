"""What is ahead at one node, in requests, seconds and blocks: what this router has placed there, and what others have. Pure.

A heartbeat's figures are soon too old, so a router counts its own requests from the moment they are placed until they end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from twostep.core.ids import RequestId
from twostep.core.pace import PrefillCurve
from twostep.router.placement.node_view import Memory, NodeDescription, NodeStatus, NodeView, Typical

TYPICAL_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Work:
    """What one request asks of a node: prompt tokens to compute, the seconds that should take, and KV blocks."""

    tokens: int = 0
    seconds: float = 0.0
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """What was known to be at the node when it was asked how it is."""

    num_requests: int
    at_node: Mapping[RequestId, int]
    """Tokens to compute, by request."""
    num_blocks: int


@dataclass(slots=True)
class NodeLoad:
    """Times are the router's clock's. At `free_at` all prompt tokens ahead will have been computed.

    What waits for memory at a node that `computes_for_others` is ahead too; at a decode node others compute most of it.
    """

    computes_for_others: bool
    free_at: float = 0.0
    _works: dict[RequestId, Work] = field(default_factory=dict)
    _computing: dict[RequestId, Work] = field(default_factory=dict)
    _sent: set[RequestId] = field(default_factory=set)
    _num_foreign: int = 0
    _foreign_tokens: int = 0
    _token_s: float = 0.0
    _num_blocks: int = 0
    _num_blocks_told: int = 0

    @property
    def num_requests(self) -> int:
        """Requests here, those of other routers included."""
        return len(self._works) + self._num_foreign

    @property
    def untold_blocks(self) -> int:
        """Blocks for requests that were placed here since the node last said how many are free."""
        return self._num_blocks - self._num_blocks_told

    def expect(self, request: RequestId, work: Work, now: float) -> None:
        """Count a request that is placed here, be it that it is sent later."""
        self.remove(request, now)
        self._works[request] = work
        self._num_blocks += work.blocks
        if work.tokens:
            self._computing[request] = work
            self.free_at = max(self.free_at, now) + work.seconds

    def send(self, request: RequestId, work: Work, now: float) -> None:
        """The request goes out to the node now."""
        if request not in self._works:
            self.expect(request, work, now)
        self._sent.add(request)

    def computed(self, request: RequestId, now: float) -> None:
        """The prompt has been computed: what is behind it begins."""
        is_first = next(iter(self._computing), None) == request
        work = self._computing.pop(request, None)
        if work is None:
            return
        if is_first:
            left_s = sum(one.seconds for one in self._computing.values())
            self.free_at = now + left_s + self._foreign_tokens * self._token_s
        else:
            self.free_at = max(now, self.free_at - work.seconds)

    def remove(self, request: RequestId, now: float) -> None:
        """The request is no longer here."""
        self.computed(request, now)
        self._works.pop(request, None)
        self._sent.discard(request)

    def mark(self) -> Mark:
        """Return what is known to be here, before the node is asked."""
        at_node = {request: work.tokens for request, work in self._computing.items() if request in self._sent}
        return Mark(len(self._works), at_node, self._num_blocks)

    def hear(self, status: NodeStatus, mark: Mark, curve: PrefillCurve, now: float) -> None:
        """Take up what the node said when it was asked at `mark`; `curve` tells what its tokens take."""
        reported_tokens = max(0, status.queued_tokens - self._elsewhere(status))
        own_tokens = sum(work.tokens for work in self._computing.values())
        own_s = sum(work.seconds for work in self._computing.values())
        self._token_s = own_s / own_tokens if own_s and own_tokens else curve.prefill_s(0, TYPICAL_TOKENS) / TYPICAL_TOKENS
        self._foreign_tokens = max(0, reported_tokens - max(own_tokens, sum(mark.at_node.values())))
        num_reported = status.num_running + status.num_waiting
        self._num_foreign = max(0, num_reported - max(mark.num_requests, len(self._works)))
        self._num_blocks_told = mark.num_blocks
        there = {request: tokens for request, tokens in mark.at_node.items() if request in self._computing}
        gone = sum(mark.at_node.values()) - sum(there.values())
        come = own_tokens - sum(there.values())
        self.free_at = now + (max(0, reported_tokens - gone) + come) * self._token_s

    def _elsewhere(self, status: NodeStatus) -> int:
        return 0 if self.computes_for_others else status.waiting_tokens


def view_of(
    node: NodeDescription, status: NodeStatus, load: NodeLoad, typical: Typical, *, place: tuple[str, str] = ("", "")
) -> NodeView:
    """Return a node as placement sees it; `typical` where it has not measured itself, `place` is its zone and machine."""
    memory = Memory(
        available=max(0, status.free_blocks + status.cached_blocks - load.untold_blocks),
        total=status.total_blocks,
        wanted=-(-status.waiting_tokens // node.geometry.block_tokens),
        hold_s=status.block_hold_s,
    )
    return NodeView(
        node,
        load=load.num_requests,
        free_at=load.free_at,
        curve=status.prefill_curve or typical.curve,
        is_measured=status.prefill_curve is not None,
        step=status.step_pace or typical.step,
        memory=memory,
        paths=status.paths,
        place=place,
    )
