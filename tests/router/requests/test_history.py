"""The latest requests are remembered, by each of their names, and what became of them."""

import asyncio

import pytest

from twostep.core.errors import NodeUnavailable
from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.router.placement.choose import Placement
from twostep.router.placement.placer import Found
from twostep.router.requests.history import History, told
from twostep.tests.router.placement.test_choose import node


def request(name: str) -> Request:
    return Request(RequestId(name), (1, 2, 3), SamplingParams(seed=0), StopRules(max_tokens=4))


def test_a_request_is_found_by_its_own_name_its_clients_and_its_replys() -> None:
    history = History(wall_clock=lambda: 5.0)
    story = history.begin(request("req-a1"), "mine", age_s=1.5)
    for name in ("req-a1", "mine", "chatcmpl-a1", "cmpl-a1"):
        assert history.find(name) is story
    assert (story.arrived_at, story.num_prompt_tokens, story.outcome) == (3.5, 3, "running")
    assert history.find("other") is None


def test_only_the_latest_are_kept_under_any_name() -> None:
    history = History(limit=2)
    for number in range(3):
        history.begin(request(f"req-{number}"), f"client-{number}")
    assert [history.find(f"req-{number}") is None for number in range(3)] == [True, False, False]
    assert [history.find(f"client-{number}") is None for number in range(3)] == [True, False, False]


def test_a_name_that_a_client_uses_again_is_its_latest_request() -> None:
    history = History(limit=2)
    for number in range(3):
        assert history.find("same") is not (story := history.begin(request(f"req-{number}"), "same"))
        assert history.find("same") is story


def test_how_a_request_ended_is_remembered_when_it_fails_or_is_left() -> None:
    failed, left = History().begin(request("req-failed"), ""), History().begin(request("req-left"), "")
    with pytest.raises(NodeUnavailable), told(failed):
        raise NodeUnavailable("gone")
    with pytest.raises(asyncio.CancelledError), told(left):
        raise asyncio.CancelledError
    assert (failed.outcome, left.outcome) == ("node_unavailable", "client_gone")


def test_what_came_is_told_of_the_attempt_that_ended_well_whatever_was_tried_after_it() -> None:
    story, won, lost = History().begin(request("req-a"), ""), Placement(node("d1"), None), Placement(node("d2"), None)
    story.begin_attempt(won, 0, 2.0)
    story.begin_attempt(lost, 0, 2.25)
    story.fail_attempt("another node was faster", lost)
    story.end_attempt(won, 2.5, Found(None, 32))
    assert [(one.first_token_s, one.found, one.error) for one in story.attempts] == [
        (0.5, Found(None, 32), ""),
        (None, None, "another node was faster"),
    ]


@pytest.mark.parametrize(("first_token", "first_token_s"), [(2.0, None), (3.5, 0.5), (None, None)])
def test_the_first_token_is_told_of_the_attempt_that_brought_it_counted_from_when_its_own_nodes_were_asked(
    first_token: float | None, first_token_s: float | None
) -> None:
    story, early, late = History().begin(request("req-a"), ""), Placement(node("d1"), None), Placement(node("d2"), None)
    story.begin_attempt(early, 0, 1.0)
    story.begin_attempt(late, 0, 3.0)
    story.end_attempt(late, first_token, Found(None, 0))
    assert [one.first_token_s for one in story.attempts] == [None, first_token_s]
