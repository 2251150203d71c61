"""A note says exactly what was written, and anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostep.core.ids import Attempt, Generation, Incarnation, NodeId, NodeRef, RequestId
from twostep.core.ticket import Leg
from twostep.kv_transfer.notes import LandedNote, decode_note, encode_note
from twostep.kv_transfer.pieces import Piece

words = st.integers(0, 2**32 - 1)
nodes = st.builds(NodeRef, st.text(max_size=40).map(NodeId), st.integers(0, 2**63 - 1).map(Incarnation))
runs = st.tuples(words, words).map(lambda ends: range(min(ends), max(ends)))
notes = st.builds(
    LandedNote,
    st.builds(
        Leg,
        request=st.text(max_size=40).map(RequestId),
        attempt=words.map(Attempt),
        source=nodes,
        destination=nodes,
        source_rank=st.integers(0, 65535),
        destination_rank=st.integers(0, 65535),
    ),
    st.integers(0, 2**64 - 1).map(Generation),
    st.builds(Piece, runs, runs),
)


@given(notes)
def test_a_note_comes_back_as_it_was(note: LandedNote) -> None:
    decoded = decode_note(encode_note(note))
    assert decoded == note
    assert (decoded.piece.layers.start, decoded.piece.layers.stop) == (note.piece.layers.start, note.piece.layers.stop)


@given(notes, st.data())
def test_a_note_that_was_cut_or_lengthened_is_refused(note: LandedNote, data: st.DataObject) -> None:
    payload = encode_note(note)
    cut = data.draw(st.integers(0, len(payload) - 1))
    for damaged in (payload[:cut], payload + b"x"):
        with pytest.raises(ValueError, match=r"notification"):
            decode_note(damaged)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode_note(payload)


def test_a_note_that_does_not_fit_is_refused() -> None:
    peer = NodeRef(NodeId("p"), Incarnation(1))
    leg = Leg(RequestId("r" * 70_000), Attempt(1), peer, peer)
    with pytest.raises(ValueError, match="does not fit"):
        encode_note(LandedNote(leg, Generation(1), Piece(range(1), range(1))))
