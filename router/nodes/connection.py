"""One node as this router knows it: heartbeats, peers and, for a decode node, its token stream. Keeps its requests alive."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

from twostep.core.block_hash import HASH_BLOCK_TOKENS
from twostep.core.clock import Clock
from twostep.core.errors import NodeUnavailable, NodeUnreachable, ServingError
from twostep.core.ids import NodeRef, RequestId
from twostep.router.config import RouterConfig
from twostep.router.discovery.member import Member, Role
from twostep.router.nodes.client import Beat, Followed, Living, NodeClient
from twostep.router.nodes.events import DecodeEnded, NodeLost, StreamEvent
from twostep.router.nodes.health import NodeHealth
from twostep.router.nodes.inbox import Inbox
from twostep.router.placement.node_load import NodeLoad, Work, view_of
from twostep.router.placement.node_view import UNMEASURED_CURVE, NodeDescription, NodeStatus, NodeView, Peer, Typical
from twostep.router.placement.prefix_index import PrefixIndex
from twostep.router.placement.prompt_hashes import Naming

log = logging.getLogger(__name__)

UNSETTLED_BEAT_S = 0.2
REST_S = 0.02
"""Between two heartbeats at least, so that many changes at once, as when a large cluster is met, are told in one."""
REOPEN_S = 0.1
PEERS_LEASES = 4
SETTLED = frozenset({"proven", "failed", "suspended"})


@dataclass(frozen=True, slots=True)
class Guest:
    """A request that lives on the node: the attempt in which it came there last, and where its events go."""

    attempt: int
    inbox: Inbox

    def lose(self, node: NodeRef, error: ServingError) -> None:
        self.inbox.put(NodeLost(self.attempt, node, error))


class NodeConnection:
    """`run` keeps the connection; everything else only reads what it has learnt."""

    def __init__(
        self,
        client: NodeClient,
        member: Member,
        config: RouterConfig,
        peers: Callable[[], list[Peer]],
        prefixes: PrefixIndex,
        *,
        clock: Clock,
        on_change: Callable[[], None],
        on_status: Callable[[], None],
        on_load: Callable[[], None],
        on_met: Callable[[], None],
    ) -> None:
        self.client = client
        self.member = member
        self.description: NodeDescription | None = None
        self.status: NodeStatus | None = None
        self._trouble = "not reached yet"
        self._retired = ""
        """Why nothing more is placed here, whatever the node itself says."""
        self._may_end = asyncio.Event()
        self._config = config
        self._peers = peers
        self._prefixes = prefixes
        self._clock = clock
        self._on_change = on_change
        self._on_status = on_status
        self._on_load = on_load
        self._on_met = on_met
        self._news = asyncio.Event()
        self._sequence = 0
        self._load = NodeLoad(computes_for_others=member.role == "prefill")
        self._requests: dict[RequestId, Guest] = {}
        self._expected: set[RequestId] = set()
        self._begun: set[RequestId] = set()
        """Those that have had a token from here: their prompts are computed."""
        self._unknown: dict[RequestId, float] = {}
        """Since when the node has not known a request that it should know."""
        self._told: tuple[list[Peer], float] = ([], float("-inf"))
        self._last_beat = clock()
        self._health = NodeHealth(clock)
        self._sickness = ""
        """Why its health forbids to place anything here now."""
        self._stream_broken_at: float | None = clock()

    @property
    def role(self) -> Role:
        return self.member.role

    @property
    def trouble(self) -> str:
        """Why no requests may be placed here now; empty when they may."""
        return self._retired or self._trouble or self._sickness

    @property
    def is_ready(self) -> bool:
        """Whether requests may be placed here now."""
        return not self.trouble

    @property
    def is_retired(self) -> bool:
        return bool(self._retired)

    @property
    def live(self) -> frozenset[RequestId]:
        return frozenset(self._requests)

    def view(self, typical: Typical) -> NodeView:
        """Return the node for placement, `typical` where it has not measured itself. Raises RuntimeError before it is known."""
        known, status = self.description, self.status
        if known is None or status is None:
            raise RuntimeError(f"{self.client.address} has not been described yet")
        return view_of(known, status, self._load, typical, place=self.member.place)

    def expect(self, request: RequestId, work: Work) -> None:
        """Count a request that is placed here but not sent yet, until it is added or removed."""
        self._expected.add(request)
        self._load.expect(request, work, self._clock())
        self._on_load()

    def add(self, request: RequestId, guest: Guest, work: Work) -> None:
        """List the request as living here, and deliver to `guest` what happens to it here."""
        self._expected.discard(request)
        self._unknown.pop(request, None)
        self._begun.discard(request)
        self._requests[request] = guest
        self._load.send(request, work, self._clock())
        self._health.begin()
        self._look_at_health()
        self._on_load()

    def remove(self, request: RequestId) -> None:
        """The request no longer lives here, nor is it expected."""
        self._expected.discard(request)
        self._unknown.pop(request, None)
        self._begun.discard(request)
        self._requests.pop(request, None)
        self._load.remove(request, self._clock())
        self._may_end.set()
        self._on_load()

    def retire(self, reason: str) -> None:
        """Place nothing more here, and let `run` end when nothing that lives here is left."""
        if not self._retired:
            log.info("node retired", extra={"node": self.client.address, "reason": reason})
            self._retired = reason
            self._may_end.set()
            self._on_change()

    def welcome(self, member: Member) -> None:
        """Take up what is now said of this node: that it stays, and where it runs."""
        self.member, self._retired = member, ""
        self._on_change()

    async def run(self) -> None:
        """Keep the connection until the node is retired and nothing lives here any more."""
        async with asyncio.TaskGroup() as tasks:
            work = [tasks.create_task(self._keep_beating(), name=f"heartbeat {self.client.address}")]
            if self.role == "decode":
                work.append(tasks.create_task(self._keep_streaming(), name=f"tokens {self.client.address}"))
            while not self._retired or self._requests or self._expected:
                await self._may_end.wait()
                self._may_end.clear()
            for task in work:
                task.cancel()
            if self.description:
                self._prefixes.drop(self.description.ref)

    async def _keep_beating(self) -> None:
        while True:
            try:
                await self._beat()
            except ServingError as error:
                self._miss(error)
            await self._until_next_beat()

    async def _until_next_beat(self) -> None:
        await asyncio.sleep(min(REST_S, self._config.heartbeat_s))
        pause_s = self._config.heartbeat_s if self._is_settled() else min(UNSETTLED_BEAT_S, self._config.heartbeat_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._news.wait()
        self._news.clear()

    def wake(self) -> None:
        """Send the next heartbeat soon: something has changed, here or at a peer."""
        self._news.set()

    async def _beat(self) -> None:
        timeout_s = self._config.heartbeat_s
        if self.description is None or not self.description.is_ready:
            self._learn(await self.client.describe(timeout_s=timeout_s))
        self._sequence += 1
        live, mark = self.live, self._load.mark()
        held = frozenset(request for request, guest in self._requests.items() if guest.inbox.is_behind)
        told = Living(live, held, self._followed())
        beat = await self.client.heartbeat(self._sequence, told, lease_s=self._config.lease_s, timeout_s=timeout_s)
        self._hear(beat, live)
        self._hear_news(beat)
        self._load.hear(beat.status, mark, beat.status.prefill_curve or UNMEASURED_CURVE, self._clock())
        if self.description is None or beat.status.ref != self.description.ref:
            self._learn(await self.client.describe(timeout_s=timeout_s))
        await self._tell_peers(timeout_s)
        self._judge()
        self._on_status()

    def _learn(self, description: NodeDescription) -> None:
        if description.role != self.role:
            raise NodeUnavailable(f"{self.client.address} is a {description.role} node, configured as {self.role}")
        if self.member.id and self.member.id != description.ref.id:
            raise NodeUnavailable(f"{self.client.address} is {description.ref.id}, expected {self.member.id}")
        if self.description and self.description.ref != description.ref:
            self._prefixes.drop(self.description.ref)
            self._lose(f"it has been replaced by {description.ref}")
            self._health = NodeHealth(self._clock)
            self._told = ([], float("-inf"))
        is_new = self.description is None or self.description.ref != description.ref
        self.description = description
        if is_new:
            self._on_met()

    def _hear(self, beat: Beat, listed: frozenset[RequestId]) -> None:
        _log_lost_pairs(self.status, beat.status)
        proven, self.status = self._proven(), beat.status
        if self._proven() != proven:
            self._on_change()
        self._last_beat = self._clock()
        now, missing = self._last_beat, beat.unknown & listed & self._requests.keys()
        self._unknown = {request: self._unknown.get(request, now) for request in missing}
        # A moment may be a request's way to the node: heartbeats can follow each other at once.
        for request in [request for request, since in self._unknown.items() if now - since >= self._config.heartbeat_s / 2]:
            # Said once: what nothing is left of does not live here, and who waits for another node reads nothing meanwhile.
            guest = self._requests[request]
            self.remove(request)
            guest.lose(beat.status.ref, NodeUnavailable(f"{beat.status.ref} no longer knows the request"))

    def _followed(self) -> Followed | None:
        ref = self.description.ref if self.description else None
        return Followed(ref, self._prefixes.next_event(ref)) if ref else None

    def _hear_news(self, beat: Beat) -> None:
        """Take up what the node's prefix cache holds now; what a life of it tells that is not known yet can wait."""
        known, ref = self.description, beat.status.ref
        if known is None or known.ref != ref or not known.is_ready:
            return
        self._prefixes.meet(ref, _naming(known))
        if beat.news and not self._prefixes.hear(ref, beat.news):
            log.warning("events of a prefix cache are missing", extra={"node": str(ref), "first": beat.news.first})
            self.wake()

    def _miss(self, error: ServingError) -> None:
        self._note_trouble(error.message)
        if self._clock() - self._last_beat > self._config.lease_s:
            self._lose(error.message)

    async def _tell_peers(self, timeout_s: float) -> None:
        peers, (told, told_at) = self._peers(), self._told
        if peers == told and self._clock() - told_at < self._config.lease_s:
            return
        await self.client.tell_peers(peers, expires_s=PEERS_LEASES * self._config.lease_s, timeout_s=timeout_s)
        self._told = (peers, self._clock())

    def _is_settled(self) -> bool:
        if not self.is_ready or self.status is None:
            return False
        states = self.status.peers
        return all(peer.ref in states and states[peer.ref].state in SETTLED for peer in self._told[0])

    async def _keep_streaming(self) -> None:
        while True:
            try:
                await self._stream()
            except ServingError as error:
                self._break_stream(error)
            except TimeoutError:
                self._break_stream(NodeUnavailable(f"{self.client.address}: the token stream does not open"))
            else:
                self._break_stream(NodeUnavailable(f"{self.client.address} has closed its token stream"))
            await asyncio.sleep(REOPEN_S)

    async def _stream(self) -> None:
        async with asyncio.timeout(self._config.node_lost_s) as opening:
            async with aclosing(self.client.tokens()) as batches:
                async for events in batches:
                    opening.reschedule(None)
                    self._stream_broken_at = None
                    for request, its_events in events.items():
                        self._deliver(request, its_events)

    def _deliver(self, request: RequestId, events: Sequence[StreamEvent]) -> None:
        for event in events:
            if isinstance(event, DecodeEnded):
                self.note_outcome(event.error)
        if guest := self._requests.get(request):
            guest.inbox.put_all(events)
            if request not in self._begun:
                self._note_begun(request)

    def _note_begun(self, request: RequestId) -> None:
        self._begun.add(request)
        self._load.computed(request, self._clock())
        self._on_load()

    def _break_stream(self, error: ServingError) -> None:
        if self._stream_broken_at is None:
            self._stream_broken_at = self._clock()
        self._note_trouble(error.message)
        if self._clock() - self._stream_broken_at >= self._config.node_lost_s:
            self._lose(error.message)

    def _lose(self, reason: str) -> None:
        """Tell every request here that the node is gone."""
        if self.description is None or not self._requests:
            return
        ref = self.description.ref
        log.warning("node lost", extra={"node": str(ref), "requests": len(self._requests), "reason": reason})
        requests, self._requests = self._requests, {}
        for request in requests:
            self._load.remove(request, self._clock())
        self._begun.clear()
        self._may_end.set()
        for guest in requests.values():
            guest.lose(ref, NodeUnreachable(f"{ref} is lost: {reason}"))

    def _judge(self) -> None:
        """Settle, after a good heartbeat, whether the node may be used."""
        if self.status is None or not self.status.is_ready or self.description is None or not self.description.is_ready:
            self._note_trouble((self.status and self.status.not_ready_reason) or "not ready")
        elif self.role == "decode" and self._stream_broken_at is not None:
            self._note_trouble("its token stream is not open")
        else:
            self._note_trouble("")
        self._look_at_health()

    def note_outcome(self, error: ServingError | None) -> None:
        """A request has ended here: well, or with `error`."""
        self._health.note(error)
        self._look_at_health()

    def _look_at_health(self) -> None:
        was_sick, self._sickness = bool(self._sickness), self._health.trouble
        if was_sick != bool(self._sickness):
            log.info("node rests" if self._sickness else "node may be used", extra=self._about(self._sickness))
            self._on_change()

    def _note_trouble(self, trouble: str) -> None:
        has_turned = bool(trouble) != bool(self._trouble)
        self._trouble = trouble
        if has_turned:
            log.info("node not ready" if trouble else "node ready", extra=self._about(trouble))
            self._on_change()

    def _about(self, reason: str) -> dict[str, str]:
        return {"node": self.client.address, "reason": reason}

    def _proven(self) -> frozenset[NodeRef]:
        return frozenset(self.status.paths) if self.status else frozenset()

    def doubt(self, peer: NodeRef) -> None:
        """Form no pair with `peer` until a heartbeat says that bytes move there; ask soon, somebody waits for that."""
        if self.status and (known := self.status.peers.get(peer)):
            peers = {**self.status.peers, peer: replace(known, is_proven=False, state="handshaking")}
            self.status = replace(self.status, peers=peers)
            self._on_status()
            self.wake()

    def suspect(self, ref: NodeRef, error: ServingError) -> None:
        """Place nothing here until the next good heartbeat: a request has just not reached the node, or been sent elsewhere."""
        if self.description and self.description.ref == ref:
            self._note_trouble(error.message)


def _naming(node: NodeDescription) -> Naming:
    size = node.geometry.block_tokens
    if size <= 0 or size % HASH_BLOCK_TOKENS:
        raise NodeUnavailable(f"{node.ref} has blocks of {size} tokens, expected a multiple of {HASH_BLOCK_TOKENS}")
    return Naming.of(node.fingerprint, node.geometry)


def _log_lost_pairs(before: NodeStatus | None, now: NodeStatus) -> None:
    for ref, peer in now.peers.items():
        known = before.peers.get(ref) if before else None
        if known and known.is_proven and not peer.is_proven:
            extra = {"node": str(now.ref), "peer": str(ref), "state": peer.state, "reason": peer.reason}
            log.warning("nothing is placed on a pair of nodes any more", extra=extra)
