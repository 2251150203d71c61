"""What UCX transports tell each other comes back as it was, and anything else is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.ucx_letters import (
    LETTER,
    MESSAGE_BYTES,
    NUM_NUMBERS,
    SESSION_BITS,
    TOKEN_BYTES,
    Answer,
    Door,
    Offer,
    Run,
    WriteName,
    decode_answer,
    decode_door,
    decode_offer,
    encode_answer,
    encode_door,
    encode_offer,
    num_messages,
)

numbers = st.integers(0, 2**64 - 1)
tokens = st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES)
names = st.builds(WriteName, st.integers(0, 2**SESSION_BITS - 1), st.integers(0, NUM_NUMBERS - 1))
doors = st.builds(Door, tokens, st.builds(MemoryRegion, numbers, numbers), st.binary(min_size=1, max_size=300))
runs = st.lists(st.builds(Run, numbers, numbers), min_size=1, max_size=20).map(tuple)
offers = st.builds(Offer, names, tokens, st.binary(max_size=300), st.binary(max_size=300), runs)
answers = st.builds(Answer, names, st.booleans())
CODECS = [(doors, encode_door, decode_door), (offers, encode_offer, decode_offer), (answers, encode_answer, decode_answer)]


@pytest.mark.parametrize(("letters", "encode", "decode"), CODECS)
def test_a_letter_comes_back_as_it_was_and_is_refused_when_cut_or_lengthened(
    letters: st.SearchStrategy[Any], encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    @given(letters, st.data())
    def check(letter: Any, data: st.DataObject) -> None:
        payload = encode(letter)
        assert decode(payload) == letter
        for damaged in (payload[: data.draw(st.integers(0, len(payload) - 1))], payload + b"x"):
            with pytest.raises(ValueError, match="bytes"):
                decode(damaged)

    check()


@given(doors, st.data())
def test_a_door_of_which_one_bit_is_wrong_is_refused(door: Door, data: st.DataObject) -> None:
    payload = bytearray(encode_door(door))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match="metadata of a UCX transport"):
        decode_door(bytes(payload))


@given(names, st.integers(0, 1000))
def test_the_tag_of_a_message_is_never_that_of_a_letter_and_tells_its_write(name: WriteName, index: int) -> None:
    tag = name.tag(index)
    assert 0 <= tag < LETTER
    assert (tag // NUM_NUMBERS, tag % NUM_NUMBERS) == (name.session, (name.first + index) % NUM_NUMBERS)


def test_a_note_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="a note of 70000 bytes does not fit"):
        encode_offer(Offer(WriteName(1, 1), bytes(TOKEN_BYTES), b"", b"n" * 70_000, (Run(0, 1),)))


def test_runs_are_cut_into_messages() -> None:
    assert [num_messages(Run(0, size)) for size in (1, MESSAGE_BYTES, MESSAGE_BYTES + 1)] == [1, 1, 2]
