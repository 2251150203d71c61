"""What UCX transports tell each other beside the bytes themselves, and the tags that tell messages apart. Pure.

A write is one offer, then the messages that its runs of bytes are cut into, and one answer. The offer shows the token of the
landing pool, which only authenticated messages carry: whoever does not know it is not listened to.
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b

from twostep.core.memory import MemoryRegion

MAGIC = b"2ucx\x01"
TOKEN_BYTES = 16
CONTROL = 1 << 63
"""Set in the tag of every control message; any other message is a run of some write."""
ANSWER = CONTROL | 1 << 62
OFFER = CONTROL
CONNECTION_BITS = 39
NUMBER_BITS = 24
NUM_NUMBERS = 1 << NUMBER_BITS
MESSAGE_BYTES = 240 << 10
"""A message goes over TCP in one segment, so that it has come whole or not at all: see `ucx_worker`."""
_CHECK_BYTES = 8
_METADATA = struct.Struct("<5s16sQQ")
_OFFER = struct.Struct("<5s16sQIHHI")
_RUN = struct.Struct("<QQ")
_ANSWER = struct.Struct("<5sQI?")


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a peer needs to write into a landing pool: UCX's own `address` of it, and the token that it asks for."""

    token: bytes
    landing: MemoryRegion
    address: bytes


@dataclass(frozen=True, slots=True)
class WriteId:
    """One write of one connection. Its messages are numbered from `first` on; numbers start again after many millions."""

    connection: int
    first: int

    def tag(self, index: int) -> int:
        return self.connection << NUMBER_BITS | (self.first + index) % NUM_NUMBERS


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes that lie together, counted from the start of the landing pool."""

    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Announces a write, run by run; the answer goes to `reply_to`."""

    write_id: WriteId
    token: bytes
    reply_to: bytes
    note: bytes
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Every byte lies in the landing pool, or the write has failed."""

    write_id: WriteId
    has_landed: bool


def num_messages(run: Run) -> int:
    """Return how many messages carry the run."""
    return -(-run.num_bytes // MESSAGE_BYTES)


def encode_metadata(metadata: Metadata) -> bytes:
    told = _METADATA.pack(MAGIC, metadata.token, metadata.landing.address, metadata.landing.num_bytes) + metadata.address
    return told + _check(told)


def decode_metadata(payload: bytes) -> Metadata:
    """Read metadata. Raises ValueError for anything else: UCX itself believes every address that it is given."""
    told, check = payload[:-_CHECK_BYTES], payload[-_CHECK_BYTES:]
    if len(told) <= _METADATA.size or not told.startswith(MAGIC) or check != _check(told):
        raise ValueError(f"{len(payload)} bytes are not the metadata of a UCX transport")
    _, token, address, num_bytes = _METADATA.unpack_from(told)
    return Metadata(token, MemoryRegion(address, num_bytes), told[_METADATA.size :])


def encode_offer(offer: Offer) -> bytes:
    """Return the offer's bytes. Raises ValueError for a note that is too long."""
    numbers = offer.write_id.connection, offer.write_id.first, len(offer.reply_to), len(offer.note), len(offer.runs)
    try:
        head = _OFFER.pack(MAGIC, offer.token, *numbers)
    except struct.error as cause:
        raise ValueError(f"a note of {len(offer.note)} bytes does not fit into an offer") from cause
    runs = b"".join(_RUN.pack(run.offset, run.num_bytes) for run in offer.runs)
    return b"".join((head, offer.reply_to, offer.note, runs))


def decode_offer(payload: bytes) -> Offer:
    """Read an offer. Raises ValueError when the bytes are not one."""
    if len(payload) < _OFFER.size or not payload.startswith(MAGIC):
        raise ValueError(f"{len(payload)} bytes are not an offer")
    _, token, connection, first, reply_bytes, note_bytes, num_runs = _OFFER.unpack_from(payload)
    note_at = _OFFER.size + reply_bytes
    runs_at = note_at + note_bytes
    if len(payload) != runs_at + num_runs * _RUN.size or not num_runs or connection >> CONNECTION_BITS or first >= NUM_NUMBERS:
        raise ValueError(f"an offer of {len(payload)} bytes is cut short or makes no sense")
    runs = tuple(Run(*told) for told in _RUN.iter_unpack(payload[runs_at:]))
    return Offer(WriteId(connection, first), token, payload[_OFFER.size : note_at], payload[note_at:runs_at], runs)


def encode_answer(answer: Answer) -> bytes:
    return _ANSWER.pack(MAGIC, answer.write_id.connection, answer.write_id.first, answer.has_landed)


def decode_answer(payload: bytes) -> Answer:
    """Read an answer. Raises ValueError when the bytes are not one."""
    if len(payload) != _ANSWER.size or not payload.startswith(MAGIC):
        raise ValueError(f"{len(payload)} bytes are not an answer")
    _, connection, first, has_landed = _ANSWER.unpack(payload)
    return Answer(WriteId(connection, first), has_landed)


def _check(told: bytes) -> bytes:
    return blake2b(told, digest_size=_CHECK_BYTES).digest()
