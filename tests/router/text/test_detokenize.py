"""Pieces of text add up to the text of the whole, and no piece holds part of a character."""

from hypothesis import given
from hypothesis import strategies as st

from twostep.router.text.detokenize import ByteDetokenizer, Detokenizer, StreamDetokenizer
from twostep.tests.router.tiny_tokenizer import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
IM_END = TOKENIZER.token_to_id("<|im_end|>")


def pieces(detokenizer: Detokenizer, tokens: list[int]) -> list[str]:
    return [*(detokenizer.feed(token) for token in tokens), detokenizer.flush()]


def test_a_character_of_four_tokens_is_shown_when_it_is_whole() -> None:
    tokens = TOKENIZER.encode("a😀").ids
    assert len(tokens) == 5
    assert pieces(StreamDetokenizer(TOKENIZER), tokens) == ["a", "", "", "", "😀", ""]


def test_a_character_that_never_becomes_whole_is_shown_as_one_that_cannot_be_read() -> None:
    tokens = TOKENIZER.encode("a😀").ids[:3]
    assert pieces(StreamDetokenizer(TOKENIZER), tokens) == ["a", "", "", TOKENIZER.decode(tokens)[1:]]
    assert TOKENIZER.decode(tokens)[1:] != ""


def test_special_tokens_have_no_text() -> None:
    tokens = [*TOKENIZER.encode("hi").ids, IM_END]
    assert "".join(pieces(StreamDetokenizer(TOKENIZER), tokens)) == "hi"


@given(st.text(max_size=12))
def test_streamed_text_equals_the_text_of_the_whole(text: str) -> None:
    tokens = TOKENIZER.encode(text).ids
    assert "".join(pieces(StreamDetokenizer(TOKENIZER), tokens)) == TOKENIZER.decode(tokens) == text


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=12))
def test_streamed_text_of_any_tokens_equals_the_text_of_the_whole(tokens: list[int]) -> None:
    assert "".join(pieces(StreamDetokenizer(TOKENIZER), tokens)) == TOKENIZER.decode(tokens, skip_special_tokens=True)


def test_bytes_are_shown_when_their_character_is_whole() -> None:
    assert pieces(ByteDetokenizer(), list("né".encode())) == ["n", "", "é", ""]


def test_a_token_that_is_no_byte_is_shown_as_its_number() -> None:
    assert pieces(ByteDetokenizer(), [0xC3, 700, 65]) == ["", "�<700>", "A", ""]


def test_half_a_character_at_the_end_is_shown_as_one_that_cannot_be_read() -> None:
    assert pieces(ByteDetokenizer(), [65, 0xC3]) == ["A", "", "�"]
