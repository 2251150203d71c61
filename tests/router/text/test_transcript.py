"""What is shown and billed of an answer."""

from twostep.core.request import StopRules
from twostep.router.text.detokenize import ByteDetokenizer
from twostep.router.text.transcript import Transcript


def transcript(*stops: str, rules: StopRules | None = None) -> Transcript:
    return Transcript(ByteDetokenizer(), rules or StopRules(max_tokens=100, eos_ids=frozenset({0})), stops)


def add(target: Transcript, text: bytes) -> str:
    return "".join(shown for _, shown in target.pieces(text))


def test_tokens_after_a_stop_string_are_neither_shown_nor_billed() -> None:
    answer = transcript("lo")
    assert add(answer, b"hello world") == "hel"
    assert answer.is_stopped
    assert answer.num_tokens == 5
    assert answer.flush() == ""


def test_the_token_that_ends_an_answer_counts_but_is_not_shown() -> None:
    answer = transcript(rules=StopRules(max_tokens=100, stop_ids=frozenset({ord("!")})))
    assert add(answer, b"hi!") == "hi"
    assert answer.num_tokens == 3


def test_an_ignored_eos_is_shown() -> None:
    answer = transcript(rules=StopRules(max_tokens=100, eos_ids=frozenset({0}), ignore_eos=True))
    assert add(answer, b"a\0b") == "a\0b"


def test_a_stop_string_that_ends_in_half_a_character_is_found_when_it_is_whole() -> None:
    answer = transcript("é!")
    assert add(answer, "é!".encode()) == ""
    assert answer.num_tokens == 3


def test_text_held_back_at_the_end_is_flushed() -> None:
    answer = transcript("END")
    assert add(answer, b"the EN") == "the "
    assert answer.flush() == "EN"
