"""The notification that follows a write: which cells of which leg have landed. A hint for early copying, never a proof."""

import struct
from dataclasses import dataclass

from twostep.core.ids import Attempt, Generation, Incarnation, NodeId, NodeRef, RequestId
from twostep.core.ticket import Leg
from twostep.kv_transfer.pieces import Piece

MAGIC = b"2step\x01"
PROBE_NOTE = b"2step probe\x01"
"""Follows a probe, so that the receiver polls fast while the next one is measured."""
_NUMBERS = struct.Struct("<6sIQQHHQIIIIHHH")


@dataclass(frozen=True, slots=True)
class LandedNote:
    """`piece` of `leg` lies in the landing extent of this generation."""

    leg: Leg
    generation: Generation
    piece: Piece


def encode_note(note: LandedNote) -> bytes:
    """Return the note's bytes: fixed numbers, then the three names. Raises ValueError for a name too long."""
    leg, piece = note.leg, note.piece
    names = [leg.request.encode(), leg.source.id.encode(), leg.destination.id.encode()]
    try:
        numbers = _NUMBERS.pack(
            MAGIC,
            leg.attempt,
            leg.source.incarnation,
            leg.destination.incarnation,
            leg.source_rank,
            leg.destination_rank,
            note.generation,
            piece.layers.start,
            piece.layers.stop,
            piece.blocks.start,
            piece.blocks.stop,
            *map(len, names),
        )
    except struct.error as cause:
        raise ValueError(f"{note} does not fit into a notification") from cause
    return numbers + b"".join(names)


def decode_note(payload: bytes) -> LandedNote:
    """Read a note. Raises ValueError when the bytes are not one."""
    if len(payload) < _NUMBERS.size or not payload.startswith(MAGIC):
        raise ValueError(f"{len(payload)} bytes are not a notification")
    numbers = _NUMBERS.unpack_from(payload)
    _, attempt, source, destination, source_rank, destination_rank, generation = numbers[:7]
    request_name, source_name, destination_name = _names(payload, numbers[11:])
    leg = Leg(
        request=RequestId(request_name),
        attempt=Attempt(attempt),
        source=NodeRef(NodeId(source_name), Incarnation(source)),
        destination=NodeRef(NodeId(destination_name), Incarnation(destination)),
        source_rank=source_rank,
        destination_rank=destination_rank,
    )
    first_layer, end_layer, first_block, end_block = numbers[7:11]
    return LandedNote(leg, Generation(generation), Piece(range(first_layer, end_layer), range(first_block, end_block)))


def _names(payload: bytes, lengths: tuple[int, ...]) -> list[str]:
    if len(payload) != _NUMBERS.size + sum(lengths):
        raise ValueError(f"a notification of {len(payload)} bytes is cut short or too long")
    names: list[str] = []
    start = _NUMBERS.size
    for length in lengths:
        names.append(payload[start : start + length].decode())
        start += length
    return names
