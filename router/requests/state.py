"""Decides what one request does next, from all that happens to it. Pure: events in, decisions out.

Only tokens of the current attempt with the next index are accepted. A failure that another node may not have leads to a
new attempt, which starts from the accepted tokens; any other ends the request.
"""

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from twostep.core.bill import DecodeBill, PrefillBill
from twostep.core.errors import Cancelled, FingerprintMismatch, NodeUnavailable, ServingError, TransferFailed, TransferTimeout
from twostep.core.ids import NodeRef
from twostep.core.request import FinishReason, Request
from twostep.core.ticket import Ticket
from twostep.router.nodes.events import (
    DecodeEnded,
    Event,
    NodeLost,
    PrefillDone,
    PrefillFailed,
    Reserved,
    ReserveFailed,
    ReserveQueued,
    ReserveSlow,
    TokenArrived,
)
from twostep.router.placement.choose import Placement


class Phase(enum.Enum):
    """Where the current attempt stands."""

    RESERVING = enum.auto()
    PREFILLING = enum.auto()
    DECODING = enum.auto()


class Blame(enum.StrEnum):
    """Which node the next attempt should avoid."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do. `ignored` names a message that was not taken, for the count."""

    ignored: str | None = None


@dataclass(frozen=True, slots=True)
class StartPrefill:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Accept:
    token: int


@dataclass(frozen=True, slots=True)
class Finish:
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Retry:
    error: ServingError
    blame: Blame


@dataclass(frozen=True, slots=True)
class Hedge:
    """D says nothing: ask another one as well."""


@dataclass(frozen=True, slots=True)
class Fail:
    error: ServingError


@dataclass(frozen=True, slots=True)
class Loser:
    """The one of two attempts beside each other that is not needed any more, and why."""

    placement: Placement
    reason: str


Decision = Wait | StartPrefill | Accept | Finish | Retry | Hedge | Fail
WAIT = Wait()
SLOWER = "another node was faster"


class RequestState:
    """One request, from its first placement to its end."""

    def __init__(self, request: Request, *, max_attempts: int) -> None:
        self._request = request
        self._max_attempts = max_attempts
        self._phase = Phase.RESERVING
        self._placements: dict[int, Placement] = {}
        """Where each attempt was placed; the first has number 1."""
        self._spare: int | None = None
        """The attempt that hedges the current one while both are asked for room."""
        self._has_heard = False
        self.attempt = 0
        self.tokens: list[int] = []
        self.finish_by_rule: FinishReason | None = None
        """Why the accepted tokens end the answer, if they do: the same rules that D applies."""
        self.avoid: Counter[NodeRef] = Counter()
        """How often each node has failed this request."""
        self.doubtful: set[tuple[NodeRef, NodeRef]] = set()
        self.mismatched: list[tuple[NodeRef, NodeRef]] = []
        """Pairs that can never serve any request, for their reader to forbid."""
        self.decode_cached_tokens = 0
        self.prefill_bill: PrefillBill | None = None
        self.decode_bill: DecodeBill | None = None
        self.owed: set[NodeRef] = set()
        """Nodes that work on the current attempt and have not said their last word about it."""
        self.losers: list[Loser] = []
        """For their reader to end."""

    @property
    def placement(self) -> Placement:
        """Of the current attempt. Raises LookupError before the first."""
        return self._placements[self.attempt]

    def begin_attempt(self, placement: Placement) -> None:
        self._drop_spare("a new attempt begins")
        self._take_up(self._place(placement))

    def hedge(self, placement: Placement) -> int:
        """Have another attempt beside the current one until either gets room. Returns its number."""
        self._spare = self._place(placement)
        return self._spare

    def take_next(self, events: Sequence[Event]) -> int:
        """Accept the tokens at the head of `events` that are waited for; returns how many. Most messages ask nothing more."""
        num_taken = 0
        for event in events:
            if not isinstance(event, TokenArrived) or event.index != len(self.tokens) or event.attempt != self.attempt:
                break
            if self._spare or self.finish_by_rule:
                break
            self._append(event.token)
            num_taken += 1
        return num_taken

    def on(self, event: Event) -> Decision:
        """Return what follows from `event`."""
        self._note_mismatch(event)
        if event.attempt == self._spare:
            return self._on_spare(event)
        return self._on_current(event) if event.attempt == self.attempt else Wait(ignored="old_attempt")

    def _place(self, placement: Placement) -> int:
        """Return the number of a new attempt."""
        attempt = len(self._placements) + 1
        self._placements[attempt] = placement
        return attempt

    def _note_mismatch(self, event: Event) -> None:
        """Whichever attempt it was of which a node says that it does not match the other: it never will."""
        if not isinstance(event, ReserveFailed | PrefillFailed | DecodeEnded | NodeLost):
            return
        placed = self._placements.get(event.attempt)
        if isinstance(event.error, FingerprintMismatch) and placed and placed.prefill:
            self.mismatched.append((placed.prefill.ref, placed.decode.ref))

    def _on_current(self, event: Event) -> Decision:
        match event:
            case TokenArrived():
                return self._on_token(event)
            case ReserveQueued():
                self._has_heard = True
                return WAIT
            case ReserveSlow():
                may_hedge = self._phase is Phase.RESERVING and not self._has_heard and self._spare is None
                return Hedge() if may_hedge else WAIT
            case Reserved():
                return self._on_reserved(event)
            case ReserveFailed(error=error):
                self.owed.discard(self.placement.decode.ref)
                return self._failed_unless_hedged(error)
            case PrefillDone(bill=bill):
                self._prefill_has_ended()
                self.prefill_bill = bill
                return WAIT
            case PrefillFailed(error=error):
                return self._on_prefill_failed(error)
            case DecodeEnded():
                return self._on_decode_ended(event)
            case NodeLost():
                return self._on_node_lost(event)

    def _take_up(self, attempt: int) -> None:
        self._phase = Phase.RESERVING
        self._has_heard = False
        self.attempt = attempt
        self.decode_cached_tokens = 0
        self.prefill_bill = self.decode_bill = None
        self.owed = {self.placement.decode.ref}

    def _drop_spare(self, reason: str) -> None:
        if self._spare:
            self.losers.append(Loser(self._placements[self._spare], reason))
            self._spare = None

    def _promote_spare(self, reason: str) -> None:
        """Go on with the other attempt: the current one has lost."""
        assert self._spare
        self.losers.append(Loser(self.placement, reason))
        attempt, self._spare = self._spare, None
        self._take_up(attempt)

    def _on_spare(self, event: Event) -> Decision:
        match event:
            case ReserveFailed(error=error) | NodeLost(error=error):
                self._drop_spare(error.message)
                return Wait(ignored="hedge_failed")
            case Reserved() | TokenArrived() | DecodeEnded():
                self._promote_spare(SLOWER)
                return self._on_current(event)
            case _:
                return WAIT

    def _failed_unless_hedged(self, error: ServingError) -> Decision:
        """D has no room, or is gone; another one may have been asked already."""
        if self._spare is None:
            return self._failed(error, Blame.DECODE)
        self._remember(error, Blame.DECODE)
        self._promote_spare(error.message)
        return Wait(ignored="hedged_failure")

    def _on_reserved(self, event: Reserved) -> Decision:
        self._drop_spare(SLOWER)
        self.decode_cached_tokens = event.cached_tokens
        if self._phase is not Phase.RESERVING:
            return WAIT  # D alone: its first token can overtake the answer to Reserve
        self._phase = Phase.PREFILLING
        if event.ticket is None or self.placement.prefill is None:
            return WAIT
        self.owed.add(self.placement.prefill.ref)
        return StartPrefill(event.ticket)

    def _prefill_has_ended(self) -> None:
        if self.placement.prefill:
            self.owed.discard(self.placement.prefill.ref)

    def _on_prefill_failed(self, error: ServingError) -> Decision:
        self._prefill_has_ended()
        if self._phase is Phase.DECODING:
            return Wait(ignored="prefill_failed_after_first_token")
        return self._failed(error, Blame.PREFILL)

    def _on_token(self, event: TokenArrived) -> Decision:
        if event.index < len(self.tokens):
            return Wait(ignored="duplicate_token")
        if self.finish_by_rule:
            return Wait(ignored="token_after_the_end")
        if event.index > len(self.tokens):
            return self._tokens_missing(event.index)
        self._drop_spare(SLOWER)
        self._append(event.token)
        return Accept(event.token)

    def _append(self, token: int) -> None:
        self._phase = Phase.DECODING
        self.finish_by_rule = self._request.stop.finish_reason(token, len(self.tokens))
        self.tokens.append(token)

    def _on_decode_ended(self, event: DecodeEnded) -> Decision:
        self.decode_bill = event.bill
        self.owed.discard(self.placement.decode.ref)
        if event.error:
            is_transfer = isinstance(event.error, TransferFailed | FingerprintMismatch)
            blame = Blame.PREFILL if is_transfer and self._phase is not Phase.DECODING else Blame.DECODE
            return self._failed(event.error, blame)
        if event.num_tokens is not None and event.num_tokens > len(self.tokens):
            return self._tokens_missing(event.num_tokens)
        if event.finish is None or event.finish is FinishReason.CANCELLED:
            return self._failed(NodeUnavailable(f"{self.placement.decode.ref} gave up the request"), Blame.DECODE)
        return Finish(event.finish)

    def _on_node_lost(self, event: NodeLost) -> Decision:
        self.owed.discard(event.node)
        if event.node == self.placement.decode.ref:
            return self._failed_unless_hedged(event.error)
        prefill = self.placement.prefill
        if prefill is None or event.node != prefill.ref or self._phase is Phase.DECODING:
            return Wait(ignored="lost_node_not_needed")
        return self._failed(event.error, Blame.PREFILL)

    def _tokens_missing(self, end: int) -> Decision:
        missing = f"{end - len(self.tokens)} tokens after number {len(self.tokens)}"
        return self._failed(NodeUnavailable(f"the stream of {self.placement.decode.ref} lost {missing}"), Blame.DECODE)

    def _failed(self, error: ServingError, blame: Blame) -> Decision:
        if finish := self.finish_by_rule:
            return Finish(finish)
        may_help = error.retry_elsewhere or isinstance(error, Cancelled)
        if not may_help or self.attempt >= self._max_attempts:
            return Fail(error)
        self._remember(error, blame)
        return Retry(error, blame)

    def _remember(self, error: ServingError, blame: Blame) -> None:
        """Note whom the next attempt should avoid. Which end of a failed transfer is at fault cannot be told from here."""
        decode, prefill = self.placement.decode, self.placement.prefill
        if prefill and isinstance(error, TransferFailed) and not isinstance(error, TransferTimeout):
            self.doubtful.add((prefill.ref, decode.ref))
        elif blamed := decode if blame is Blame.DECODE else prefill:
            self.avoid[blamed.ref] += 1
