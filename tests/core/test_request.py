import pytest

from twostep.core.ids import RequestId
from twostep.core.request import FinishReason, Request, SamplingParams, StopRules

EOS, STOP_ID, WORD = 2, 5, 9
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("token", "index", "ignore_eos", "expected"),
    [
        (WORD, 0, False, None),
        (WORD, 1, False, None),
        (WORD, 2, False, LENGTH),
        (WORD, 3, False, LENGTH),
        (EOS, 0, False, STOP),
        (EOS, 2, False, STOP),
        (EOS, 0, True, None),
        (EOS, 2, True, LENGTH),
        (STOP_ID, 0, False, STOP),
        (STOP_ID, 0, True, STOP),
        (STOP_ID, 2, True, STOP),
    ],
)
def test_stop_rules(token: int, index: int, ignore_eos: bool, expected: FinishReason | None) -> None:
    rules = StopRules(max_tokens=3, eos_ids=frozenset({EOS}), stop_ids=frozenset({STOP_ID}), ignore_eos=ignore_eos)
    assert rules.finish_reason(token, index) is expected


def test_a_single_token_answer_ends_with_its_first_token() -> None:
    assert StopRules(max_tokens=1).finish_reason(WORD, 0) is LENGTH


def test_forced_output_tokens_stand_after_the_prompt() -> None:
    request = Request(RequestId("r"), (1, 2), SamplingParams(seed=0), StopRules(max_tokens=9), output_tokens=(3,))
    assert request.tokens == (1, 2, 3)
