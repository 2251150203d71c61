"""Defaults, limits and minted values of an accepted request."""

from typing import Any

import pytest

from twostep.core.errors import InvalidRequest, PromptTooLong, UnknownModel
from twostep.core.ids import RequestId
from twostep.core.request import Request, SamplingParams
from twostep.router.front.openai.accept import ModelLimits, accept, require_model
from twostep.router.front.openai.chat_request import ChatRequest

LIMITS = ModelLimits(max_model_tokens=100, max_prompt_tokens=90, vocab_size=1000)


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [{"role": "user", "content": "hi"}], **fields})


def accepted(num_prompt: int = 10, **fields: Any) -> Request:
    return accept(chat(**fields), RequestId("req-1"), tuple(range(num_prompt)), LIMITS, frozenset({2}))


def test_what_a_client_leaves_out_is_as_openai_has_it() -> None:
    request = accepted(seed=5)
    assert request.sampling == SamplingParams(seed=5, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    assert request.stop.max_tokens == 90
    assert request.stop.eos_ids == {2}
    assert not request.stop.ignore_eos
    assert request.cache_salt == b""


def test_a_missing_seed_is_minted() -> None:
    assert accepted().sampling.seed != accepted().sampling.seed


def test_a_negative_seed_is_taken_as_64_bits() -> None:
    assert accepted(seed=-1).sampling.seed == (1 << 64) - 1


def test_what_a_client_says_is_passed_on() -> None:
    request = accepted(
        max_tokens=7, temperature=0, top_p=0.5, top_k=-1, min_p=0.1, stop_token_ids=[5], ignore_eos=True, cache_salt="ö"
    )
    assert request.sampling.temperature == 0.0
    assert (request.sampling.top_p, request.sampling.top_k, request.sampling.min_p) == (0.5, 0, 0.1)
    assert (request.stop.max_tokens, request.stop.stop_ids, request.stop.ignore_eos) == (7, {5}, True)
    assert request.cache_salt == "ö".encode()


def test_max_completion_tokens_is_max_tokens_by_its_newer_name() -> None:
    assert accepted(max_tokens=7, max_completion_tokens=9).stop.max_tokens == 9


def test_a_prompt_that_can_never_fit_is_refused() -> None:
    assert accepted(90).stop.max_tokens == 10
    with pytest.raises(PromptTooLong, match="the prompt has 91 tokens, at most 90 fit"):
        accepted(91)


def test_an_answer_that_can_never_fit_is_refused() -> None:
    assert accepted(10, max_tokens=90).stop.max_tokens == 90
    with pytest.raises(
        InvalidRequest, match="together may have at most 100 tokens; the prompt has 10, so max_tokens can be 90"
    ) as raised:
        accepted(10, max_tokens=91)
    assert raised.value.param == "max_tokens"


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least 1 token"):
        accepted(0)


def test_a_stop_token_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="stop_token_ids: token ids must be below 1000, found 1000"):
        accepted(stop_token_ids=[5, 1000])


def test_only_a_served_model_may_be_asked_for() -> None:
    require_model("a", ["a", "b"])
    require_model(None, ["a"])
    with pytest.raises(UnknownModel, match="model 'c' does not exist here; served: 'a', 'b'") as raised:
        require_model("c", ["a", "b"])
    assert raised.value.http_status == 404


def test_one_stop_string_is_a_list_of_one() -> None:
    assert chat(stop="x").stop_strings == ("x",)
    assert chat(stop=["x", "y"]).stop_strings == ("x", "y")
    assert chat().stop_strings == ()
