"""One request's run on the nodes: carries out what its state decides."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from twostep.core.errors import NodeDraining, NodeUnavailable, NoReadyNode, Overloaded, ServingError
from twostep.core.ids import NodeRef, RequestId
from twostep.core.request import FinishReason
from twostep.router.bill import Bill, Timeline, cached_tokens, make_bill
from twostep.router.metrics import Metrics
from twostep.router.nodes.events import Event, Reserved, ReserveSlow
from twostep.router.nodes.inbox import Inbox
from twostep.router.placement.choose import Avoid, Placement
from twostep.router.placement.placer import Errand, Found
from twostep.router.requests.delivery import Delivery, TokenSink
from twostep.router.requests.history import RequestStory
from twostep.router.requests.legs import Legs
from twostep.router.requests.state import Accept, Blame, Fail, Finish, Hedge, RequestState, Retry, StartPrefill, Wait

log = logging.getLogger(__name__)

LAST_WORD_S = 1.0


class Nodes(Protocol):
    """Where runs find their nodes."""

    def place(self, errand: Errand, num_accepted: int, keep: NodeRef | None, avoid: Avoid) -> Placement:
        """Choose nodes: prefer to keep the named decode node, avoid what has failed. Raises NoReadyNode."""

    async def place_again(self, errand: Errand, num_accepted: int, keep: NodeRef | None, avoid: Avoid) -> Placement:
        """The same, for a request that has lost a node: wait for another to be ready, for a moment once tokens are there.

        Raises NoReadyNode.
        """

    def may_retry(self, error: ServingError) -> bool:
        """Return whether one more attempt is allowed after `error`, and count it as made."""

    def forbid(self, prefill: NodeRef, decode: NodeRef) -> None:
        """Never form this pair again, for any request."""

    def computed(self, request: RequestId) -> None:
        """The prompt has been computed: the first token is there."""

    def learn(self, placement: Placement, found: Found, bill: Bill, num_tokens: int) -> None:
        """Take up how a request went that ended well."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended well. `finish` is None when its reader wanted no more tokens.

    `placement` is the last one, with its reasons: what `bill` came to can be held against it.
    """

    finish: FinishReason | None
    cached_tokens: int
    bill: Bill
    placement: Placement


class Run:
    """`sink` gets the accepted tokens, in order, as soon as they are there."""

    def __init__(
        self,
        errand: Errand,
        state: RequestState,
        legs: Legs,
        inbox: Inbox,
        times: Timeline,
        story: RequestStory,
        sink: TokenSink,
        *,
        nodes: Nodes,
        metrics: Metrics,
        hedge_after_s: float,
    ) -> None:
        self._hedge_after_s = hedge_after_s
        self._errand = errand
        self._request = errand.request
        self._state = state
        self._legs = legs
        self._inbox = inbox
        self._times = times
        self._story = story
        self._nodes = nodes
        self._metrics = metrics
        self._now = asyncio.get_running_loop().time
        self._sink = sink
        self._delivery = Delivery(state.tokens, sink, self._now)
        self._finish: FinishReason | None = None
        self._fault: Exception | None = None
        """What the tokens that were taken at once have failed with."""
        self._hedging: asyncio.TimerHandle | None = None

    async def to_the_end(self) -> Outcome:
        """Serve the request. Raises ServingError when it fails for good."""
        placing = self._now()
        placement = self._nodes.place(self._errand, 0, None, self._avoid())
        self._times.place_s = self._now() - placing
        try:
            await self._begin(placement)
            while self._finish is None and not self._sink.is_satisfied:
                for event in await self._inbox.take(self._take_tokens):
                    await self._react(event)
                if self._fault:
                    raise self._fault
                await self._delivery.settle()
        finally:
            self._stop_hedging()
        if self._sink.is_satisfied:
            self._stop_decoding()
        await self._await_last_words()
        return self._outcome(None if self._sink.is_satisfied else self._finish)

    def _take_tokens(self, events: Sequence[Event]) -> Sequence[Event]:
        """Take the tokens at the head of `events` while this run waits: most messages bring nothing else to a request.

        What that fails with is raised where the run waits: whoever brings events to many requests has no part in it.
        """
        num_taken = 0
        try:
            num_taken = self._state.take_next(events)
            if num_taken:
                self._note_tokens()
            is_out = self._delivery.put_out()
        except Exception as fault:  # noqa: BLE001
            self._fault, is_out = fault, False
        if not is_out or self._finish or self._sink.is_satisfied:
            self._inbox.wake()
        return events[num_taken:]

    def _note_tokens(self) -> None:
        """The state has accepted tokens."""
        self._finish = self._state.finish_by_rule
        self._times.last_token = self._now()
        if self._times.first_token is None:
            self._times.first_token = self._times.last_token
            self._nodes.computed(self._request.id)

    async def _react(self, event: Event) -> None:
        decision = self._state.on(event)
        self._end_losers()
        while self._state.mismatched:
            self._nodes.forbid(*self._state.mismatched.pop())
        match decision:
            case Wait(ignored=why):
                self._note(event, why)
            case Accept():
                self._note_tokens()
            case StartPrefill(ticket=ticket):
                self._times.reserved = self._now()
                await self._legs.prefill(self._state.attempt, self._state.placement, ticket, tuple(self._state.tokens))
            case Finish(reason=reason):
                self._finish = reason
            case Hedge():
                await self._hedge()
            case Retry() | Fail():
                await self._delivery.settle()
                await self._retry_or_raise(decision)

    async def _retry_or_raise(self, decision: Retry | Fail) -> None:
        if self._sink.is_satisfied:
            return
        self._story.fail_attempt(decision.error.message, self._state.placement)
        if isinstance(decision, Fail):
            raise decision.error
        await self._recover(decision)

    def _stop_decoding(self) -> None:
        """P is left to say its last word: D has a token, so P has done its work and only waits to hear that."""
        decode = self._state.placement.decode.ref
        if decode in self._state.owed:
            self._legs.cancel(decode, "a stop string has been found")

    async def _begin(self, placement: Placement) -> None:
        self._state.begin_attempt(placement)
        self._end_losers()
        now = self._now()
        self._story.begin_attempt(placement, len(self._state.tokens), now)
        self._times.begin_attempt(now)
        if placement.bypass:
            self._metrics.bypass.labels(placement.bypass).inc()
        self._stop_hedging()
        slow = ReserveSlow(self._state.attempt)
        self._hedging = asyncio.get_running_loop().call_later(self._hedge_after_s, self._inbox.put, slow)
        await self._legs.reserve(self._state.attempt, placement, tuple(self._state.tokens))

    async def _hedge(self) -> None:
        """Ask another decode node for room as well, where there is one and the router's budget allows it."""
        silent = self._state.placement.decode.ref
        avoid = replace(self._avoid(), nodes={**self._state.avoid, silent: self._state.avoid[silent] + 1})
        try:
            placement = self._nodes.place(self._errand, len(self._state.tokens), None, avoid)
        except NoReadyNode:
            self._metrics.hedges.labels("no_other_node").inc()
            return
        if placement.decode.ref == silent:
            self._metrics.hedges.labels("no_other_node").inc()
        elif not self._nodes.may_retry(NodeUnavailable(f"{silent} says nothing to a reservation")):
            self._metrics.hedges.labels("refused").inc()
        else:
            self._metrics.hedges.labels("asked").inc()
            log.info("another node is asked as well", extra={"request": self._request.id, "silent": str(silent)})
            self._story.begin_attempt(placement, len(self._state.tokens), self._now())
            await self._legs.reserve(self._state.hedge(placement), placement, tuple(self._state.tokens))

    def _end_losers(self) -> None:
        """End the attempts that another one, made beside them, has won against."""
        while self._state.losers:
            loser = self._state.losers.pop()
            self._story.fail_attempt(loser.reason, loser.placement)
            self._legs.end(loser.placement.decode.ref, "another node serves the request")

    def _stop_hedging(self) -> None:
        if self._hedging:
            self._hedging.cancel()

    async def _recover(self, retry: Retry) -> None:
        """Start a new attempt from the accepted tokens.

        Raises the error that made it necessary when the router's budget is spent, or no node is left; NoReadyNode where the
        last one drains.
        """
        if not self._nodes.may_retry(retry.error):
            self._metrics.retries_refused.labels(retry.error.code).inc()
            raise retry.error
        failed = self._state.placement
        self._metrics.retries.labels(retry.blame, retry.error.code).inc()
        log.info("new attempt", extra={"request": self._request.id, "blame": retry.blame, "reason": retry.error.message})
        self._drop(failed, retry)
        try:
            keep = failed.decode.ref if retry.blame is Blame.PREFILL else None
            placement = await self._nodes.place_again(self._errand, len(self._state.tokens), keep, self._avoid())
        except NoReadyNode as none_left:
            if isinstance(retry.error, NodeDraining):
                # Nothing has failed: its client is to hear that there is no other node, and when to come again.
                raise
            raise retry.error from none_left
        if isinstance(retry.error, Overloaded) and placement.decode.ref in self._state.avoid:
            raise retry.error
        await self._begin(placement)

    def _drop(self, failed: Placement, retry: Retry) -> None:
        """End what is left of the failed attempt; when P is to blame, D keeps its blocks for the next one."""
        dropped = [failed.prefill] if retry.blame is Blame.PREFILL else [failed.prefill, failed.decode]
        # A node that cannot be reached may still be at work.
        is_unsure = isinstance(retry.error, NodeUnavailable)
        for node in dropped:
            if node and (is_unsure or node.ref in self._state.owed):
                self._legs.end(node.ref, "a new attempt begins")
            elif node:
                self._legs.leave(node.ref)

    async def _await_last_words(self) -> None:
        """Wait a moment for the nodes' bills: they may come after the last token."""
        try:
            async with asyncio.timeout(LAST_WORD_S):
                while self._state.owed:
                    for event in await self._inbox.take():
                        self._state.on(event)
        except TimeoutError:
            for ref in self._state.owed:
                self._metrics.missing_bills.labels(ref.id).inc()
        placement = self._state.placement
        for node in (placement.decode, placement.prefill):
            if node and node.ref not in self._state.owed:
                self._legs.leave(node.ref)

    def _outcome(self, finish: FinishReason | None) -> Outcome:
        state, placement = self._state, self._state.placement
        self._times.first_written, self._times.ended = self._delivery.first_out, self._now()
        cached = cached_tokens(state.prefill_bill, state.decode_cached_tokens, len(self._request.prompt))
        bill = make_bill(
            self._times,
            state.prefill_bill,
            state.decode_bill,
            num_tokens=len(state.tokens),
            cached=cached,
            attempts=state.attempt,
            prefill_node=placement.prefill.ref.id if placement.prefill else None,
            decode_node=placement.decode.ref.id,
        )
        found = Found(state.prefill_bill.cached_tokens if state.prefill_bill else None, state.decode_cached_tokens)
        self._story.end_attempt(placement, self._times.first_token, found)
        self._nodes.learn(placement, found, bill, len(state.tokens))
        return Outcome(finish, cached, bill, placement)

    def _note(self, event: Event, ignored: str | None) -> None:
        if isinstance(event, Reserved):
            self._times.reserved = self._now()
        if ignored:
            self._metrics.ignored.labels(ignored).inc()

    def _avoid(self) -> Avoid:
        return Avoid(dict(self._state.avoid), frozenset(self._state.doubtful))
