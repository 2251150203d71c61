"""What a request does next: events in, decisions out."""

import pytest

from twostep.core.bill import PrefillBill
from twostep.core.errors import (
    Cancelled,
    ChecksumMismatch,
    EngineFault,
    FingerprintMismatch,
    InvalidRequest,
    NodeUnavailable,
    QueueFull,
    RequestFault,
    ServingError,
)
from twostep.core.ids import Attempt, Generation, Incarnation, NodeId, NodeRef, RequestId
from twostep.core.request import FinishReason, Request, SamplingParams, StopRules
from twostep.core.ticket import LandingExtent, Leg, Ticket, TokenRange
from twostep.router.nodes.events import (
    DecodeEnded,
    NodeLost,
    PrefillDone,
    PrefillFailed,
    Reserved,
    ReserveFailed,
    ReserveQueued,
    ReserveSlow,
    TokenArrived,
)
from twostep.router.placement.choose import Bypass, Placement
from twostep.router.requests.state import (
    SLOWER,
    WAIT,
    Accept,
    Blame,
    Fail,
    Finish,
    Hedge,
    Loser,
    RequestState,
    Retry,
    StartPrefill,
    Wait,
)
from twostep.tests.router.placement.test_choose import node

ID = RequestId("req-1")
P, D = NodeRef(NodeId("p"), Incarnation(1)), NodeRef(NodeId("d"), Incarnation(1))
PAIR = Placement(node("d"), node("p"))
ALONE = Placement(node("d"), None, Bypass.NO_PREFILL_NODE)
EXTENT = LandingExtent(0, 64, 1, Generation(1))
TICKET = Ticket(Leg(ID, Attempt(1), P, D), TokenRange(0, 3), b"", EXTENT, 1, 0, 1, b"", 10.0)
BILL = PrefillBill(0.0, 0.0, 0.0, 0.0, 2, 1, 64)


def begin(placement: Placement = PAIR, *, max_tokens: int = 10, max_attempts: int = 3) -> RequestState:
    request = Request(ID, (1, 2, 3), SamplingParams(seed=1), StopRules(max_tokens=max_tokens, eos_ids=frozenset({0})))
    begun = RequestState(request, max_attempts=max_attempts)
    begun.begin_attempt(placement)
    return begun


def reserved(attempt: int = 1, ticket: Ticket | None = TICKET) -> Reserved:
    return Reserved(attempt, ticket, 32)


def token(index: int, value: int = 7, attempt: int = 1) -> TokenArrived:
    return TokenArrived(ID, attempt, index, value)


def ended(
    finish: FinishReason | None = FinishReason.LENGTH,
    error: ServingError | None = None,
    *,
    attempt: int = 1,
    num_tokens: int | None = None,
) -> DecodeEnded:
    return DecodeEnded(ID, attempt, finish, error, None, num_tokens)


def decoding(num_tokens: int = 1) -> RequestState:
    begun = begin()
    begun.on(reserved())
    for index in range(num_tokens):
        begun.on(token(index))
    return begun


def test_no_prefill_starts_without_a_ticket() -> None:
    assert begin().on(reserved()) == StartPrefill(TICKET)
    assert begin(ALONE).on(reserved(ticket=None)) == WAIT


def test_the_next_token_of_the_current_attempt_is_accepted() -> None:
    begun = decoding(0)
    assert begun.on(token(0, 5)) == Accept(5)
    assert begun.on(token(1, 6)) == Accept(6)
    assert begun.tokens == [5, 6]


def test_only_the_token_that_is_waited_for_is_taken_without_a_decision() -> None:
    begun = decoding(1)
    for other in (token(0), token(2), token(1, attempt=2), ended()):
        assert begun.take_next([other]) == 0
    assert begun.take_next([token(1, 6), token(2, 5), token(4)]) == 2
    assert begun.tokens == [7, 6, 5]
    assert begun.take_next([token(3, 0), token(4)]) == 1
    assert begun.finish_by_rule is FinishReason.STOP
    assert begun.take_next([token(4)]) == 0
    assert hedged().take_next([token(0)]) == 0


def test_a_token_that_was_there_before_is_ignored() -> None:
    begun = decoding(2)
    assert begun.on(token(0)) == Wait(ignored="duplicate_token")
    assert begun.on(token(1)) == Wait(ignored="duplicate_token")
    assert len(begun.tokens) == 2


def test_a_token_of_an_old_attempt_is_ignored() -> None:
    begun = decoding(1)
    begun.begin_attempt(PAIR)
    assert begun.on(token(1, attempt=1)) == Wait(ignored="old_attempt")
    assert begun.on(ended(attempt=1)) == Wait(ignored="old_attempt")
    assert begun.on(token(1, attempt=2)) == Accept(7)


def test_a_gap_in_the_tokens_begins_a_new_attempt_from_those_accepted() -> None:
    begun = decoding(2)
    decision = begun.on(token(3))
    assert isinstance(decision, Retry)
    assert (decision.blame, begun.tokens) == (Blame.DECODE, [7, 7])
    assert "1 tokens after number 2" in decision.error.message


def test_an_end_that_counts_more_tokens_than_came_begins_a_new_attempt() -> None:
    assert isinstance(decoding(2).on(ended(num_tokens=3)), Retry)
    assert decoding(2).on(ended(num_tokens=2)) == Finish(FinishReason.LENGTH)


def test_tokens_after_the_end_by_rule_are_ignored() -> None:
    begun = begin(max_tokens=1)
    begun.on(reserved())
    assert begun.on(token(0)) == Accept(7)
    assert begun.finish_by_rule is FinishReason.LENGTH
    assert begun.on(token(1)) == Wait(ignored="token_after_the_end")


def test_a_lone_nodes_first_token_may_overtake_its_answer_to_reserve() -> None:
    begun = begin(ALONE)
    assert begun.on(token(0)) == Accept(7)
    assert begun.on(reserved(ticket=None)) == WAIT
    assert begun.decode_cached_tokens == 32


@pytest.mark.parametrize("error", [NodeUnavailable("gone"), EngineFault("broken"), Cancelled("its lease ran out")])
def test_a_prefill_that_another_node_can_do_is_done_again_and_the_node_avoided(error: ServingError) -> None:
    begun = decoding(0)
    assert begun.on(PrefillFailed(1, error)) == Retry(error, Blame.PREFILL)
    assert begun.avoid == {P: 1}


@pytest.mark.parametrize("error", [InvalidRequest("too long for me"), RequestFault("NaN")])
def test_an_error_that_no_other_node_can_help_is_final(error: ServingError) -> None:
    assert decoding(0).on(PrefillFailed(1, error)) == Fail(error)
    assert decoding(1).on(ended(None, error)) == Fail(error)
    assert begin().on(ReserveFailed(1, error)) == Fail(error)


def test_a_prefill_that_fails_after_its_first_token_came_does_no_harm() -> None:
    begun = decoding(1)
    assert begun.on(PrefillFailed(1, NodeUnavailable("gone"))) == Wait(ignored="prefill_failed_after_first_token")
    assert begun.on(NodeLost(1, P, NodeUnavailable("gone"))) == Wait(ignored="lost_node_not_needed")


def test_a_transfer_that_fails_before_the_first_token_is_blamed_on_the_sender() -> None:
    error = ChecksumMismatch("block 3")
    assert decoding(0).on(ended(None, error)) == Retry(error, Blame.PREFILL)
    assert decoding(1).on(ended(None, error)) == Retry(error, Blame.DECODE)


def test_a_decode_node_that_is_lost_is_replaced() -> None:
    begun = decoding(3)
    error = NodeUnavailable("gone")
    assert begun.on(NodeLost(1, D, error)) == Retry(error, Blame.DECODE)
    assert begun.avoid == {D: 1}


def test_what_a_node_had_forgotten_before_the_current_attempt_is_no_loss() -> None:
    begun = decoding(0)
    error = NodeUnavailable("gone")
    begun.on(PrefillFailed(1, error))
    begun.begin_attempt(PAIR)
    assert begun.on(NodeLost(1, D, error)) == begun.on(NodeLost(1, P, error)) == Wait(ignored="old_attempt")
    assert begun.owed == {D}
    assert begun.on(NodeLost(2, D, error)) == Retry(error, Blame.DECODE)


def test_a_full_node_sends_the_request_elsewhere() -> None:
    error = QueueFull("full")
    assert begin().on(ReserveFailed(1, error)) == Retry(error, Blame.DECODE)


def test_a_decode_node_that_gives_up_unasked_is_replaced() -> None:
    assert isinstance(decoding(1).on(ended(FinishReason.CANCELLED)), Retry)


def test_the_last_attempt_has_no_successor() -> None:
    begun = begin(max_attempts=1)
    error = NodeUnavailable("gone")
    assert begun.on(ReserveFailed(1, error)) == Fail(error)


def test_an_answer_whose_tokens_are_all_there_survives_its_nodes() -> None:
    begun = begin(max_tokens=1)
    begun.on(reserved())
    begun.on(token(0))
    assert begun.on(NodeLost(1, D, NodeUnavailable("gone"))) == Finish(FinishReason.LENGTH)
    assert begun.owed == {P}


def test_each_node_owes_a_last_word_until_it_has_said_it() -> None:
    begun = decoding(1)
    assert begun.owed == {P, D}
    begun.on(PrefillDone(1, BILL))
    assert begun.owed == {D}
    begun.on(ended())
    assert begun.owed == set()
    assert begun.prefill_bill == BILL


OTHER = Placement(node("e"), node("p"))


def hedged() -> RequestState:
    begun = begin()
    assert begun.on(ReserveSlow(1)) == Hedge()
    assert begun.hedge(OTHER) == 2
    return begun


def test_a_node_that_has_said_something_is_not_hedged() -> None:
    queued, granted = begin(), begin()
    queued.on(ReserveQueued(1, 3, None))
    granted.on(reserved())
    assert queued.on(ReserveSlow(1)) == granted.on(ReserveSlow(1)) == WAIT


def test_a_request_is_hedged_once() -> None:
    assert hedged().on(ReserveSlow(1)) == WAIT


def test_the_first_node_to_grant_gets_the_request_and_the_other_is_to_be_ended() -> None:
    first, second = hedged(), hedged()
    assert first.on(reserved(1)) == StartPrefill(TICKET)
    assert (first.attempt, first.placement, first.losers) == (1, PAIR, [Loser(OTHER, SLOWER)])
    assert second.on(reserved(2)) == StartPrefill(TICKET)
    assert (second.attempt, second.placement, second.losers) == (2, OTHER, [Loser(PAIR, SLOWER)])
    assert second.owed == {OTHER.decode.ref, P}
    for settled, late in ((first, 2), (second, 1)):
        assert settled.on(reserved(late)) == Wait(ignored="old_attempt")
        assert settled.on(token(0, attempt=late)) == Wait(ignored="old_attempt")


@pytest.mark.parametrize("event", [ReserveFailed(1, NodeUnavailable("x")), NodeLost(1, D, NodeUnavailable("x"))])
def test_when_the_first_node_fails_the_other_one_is_already_asked(event: ReserveFailed | NodeLost) -> None:
    begun = hedged()
    assert begun.on(event) == Wait(ignored="hedged_failure")
    assert (begun.attempt, begun.placement, begun.losers) == (2, OTHER, [Loser(PAIR, "x")])
    assert begun.on(reserved(2)) == StartPrefill(TICKET)


@pytest.mark.parametrize("event", [ReserveFailed(2, NodeUnavailable("x")), NodeLost(2, OTHER.decode.ref, NodeUnavailable("x"))])
def test_a_hedge_that_fails_is_to_be_ended_and_changes_nothing_else(event: ReserveFailed | NodeLost) -> None:
    begun = hedged()
    assert begun.on(event) == Wait(ignored="hedge_failed")
    assert begun.on(reserved(1)) == StartPrefill(TICKET)
    assert begun.losers == [Loser(OTHER, "x")]


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_pair_that_does_not_match_is_told_of_though_another_node_was_asked_as_well(attempt: int) -> None:
    begun = hedged()
    begun.on(ReserveFailed(attempt, FingerprintMismatch("another model")))
    assert begun.mismatched == [(P, (PAIR, OTHER)[attempt - 1].decode.ref)]


def test_a_pair_that_does_not_match_is_told_of_whenever_a_node_says_so() -> None:
    begun, mismatch = begin(), FingerprintMismatch("another model")
    begun.on(PrefillFailed(1, mismatch))
    begun.begin_attempt(OTHER)
    begun.on(ended(None, mismatch))
    begun.on(ended(None, mismatch, attempt=7))
    assert begun.mismatched == [(P, D), (P, D)]


def test_a_new_attempt_ends_the_hedge_and_has_a_number_of_its_own() -> None:
    begun = hedged()
    assert isinstance(begun.on(NodeLost(1, P, NodeUnavailable("x"))), Retry)
    begun.begin_attempt(PAIR)
    assert (begun.attempt, begun.losers) == (3, [Loser(OTHER, "a new attempt begins")])
