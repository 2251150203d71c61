"""What UCX transports tell each other comes back as it was, and anything else is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostep.core.memory import MemoryRegion
from twostep.kv_transfer.ucx_protocol import (
    CONNECTION_BITS,
    CONTROL,
    MESSAGE_BYTES,
    NUM_NUMBERS,
    TOKEN_BYTES,
    Answer,
    Metadata,
    Offer,
    Run,
    WriteId,
    decode_answer,
    decode_metadata,
    decode_offer,
    encode_answer,
    encode_metadata,
    encode_offer,
    num_messages,
)

numbers = st.integers(0, 2**64 - 1)
tokens = st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES)
names = st.builds(WriteId, st.integers(0, 2**CONNECTION_BITS - 1), st.integers(0, NUM_NUMBERS - 1))
metadatas = st.builds(Metadata, tokens, st.builds(MemoryRegion, numbers, numbers), st.binary(min_size=1, max_size=300))
runs = st.lists(st.builds(Run, numbers, numbers), min_size=1, max_size=20).map(tuple)
offers = st.builds(Offer, names, tokens, st.binary(max_size=300), st.binary(max_size=300), runs)
answers = st.builds(Answer, names, st.booleans())
CODECS = [
    (metadatas, encode_metadata, decode_metadata),
    (offers, encode_offer, decode_offer),
    (answers, encode_answer, decode_answer),
]


@pytest.mark.parametrize(("messages", "encode", "decode"), CODECS)
def test_a_message_comes_back_as_it_was_and_is_refused_when_cut_or_lengthened(
    messages: st.SearchStrategy[Any], encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    @given(messages, st.data())
    def check(message: Any, data: st.DataObject) -> None:
        payload = encode(message)
        assert decode(payload) == message
        for damaged in (payload[: data.draw(st.integers(0, len(payload) - 1))], payload + b"x"):
            with pytest.raises(ValueError, match="bytes"):
                decode(damaged)

    check()


@given(metadatas, st.data())
def test_metadata_of_which_one_bit_is_wrong_is_refused(metadata: Metadata, data: st.DataObject) -> None:
    payload = bytearray(encode_metadata(metadata))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match="metadata of a UCX transport"):
        decode_metadata(bytes(payload))


@given(names, st.integers(0, 1000))
def test_the_tag_of_a_message_is_never_that_of_a_control_message_and_tells_its_write(write_id: WriteId, index: int) -> None:
    tag = write_id.tag(index)
    assert 0 <= tag < CONTROL
    assert (tag // NUM_NUMBERS, tag % NUM_NUMBERS) == (write_id.connection, (write_id.first + index) % NUM_NUMBERS)


def test_a_note_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="a note of 70000 bytes does not fit"):
        encode_offer(Offer(WriteId(1, 1), bytes(TOKEN_BYTES), b"", b"n" * 70_000, (Run(0, 1),)))


def test_runs_are_cut_into_messages() -> None:
    assert [num_messages(Run(0, size)) for size in (1, MESSAGE_BYTES, MESSAGE_BYTES + 1)] == [1, 1, 2]
