"""Receives the writes that peers offer, straight into the landing pool and nowhere else, and answers each of them once.

Bytes land only while this side polls. What has not come when a connection ends, or `PATIENCE_S` after its write was
offered, never lands any more.
"""

import hmac
import logging
from collections import deque
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from twostep.core.clock import Clock
from twostep.kv_transfer.ucx_protocol import ANSWER, Answer, Offer, WriteId, decode_offer, encode_answer, num_messages
from twostep.kv_transfer.ucx_worker import Bytes, Endpoint, Request, UcxFailure, UcxWorker, messages_of

PATIENCE_S = 60.0
"""Longer than any sender waits for a write that makes no progress."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Arrival:
    write_id: WriteId
    note: bytes
    missing: deque[Request]
    num_messages: int
    since_s: float

    def is_whole(self) -> bool:
        while self.missing and self.missing[0].is_over:
            self.missing.popleft()
        return not self.missing


@dataclass(slots=True)
class _Source:
    """One connection of one peer, and its writes that have been offered and not answered."""

    endpoint: Endpoint
    arrivals: deque[_Arrival] = field(default_factory=deque)


class Arrivals:
    """Writes into `landing`, from whoever shows `token`."""

    def __init__(self, receiving: UcxWorker, sending: UcxWorker, landing: Bytes, token: bytes, clock: Clock) -> None:
        self._receiving = receiving
        self._sending = sending
        self._landing = landing
        self._token = token
        self._clock = clock
        self._sources: dict[int, _Source] = {}

    def take(self, message: bytes) -> None:
        """Begin to receive what is offered. What makes no sense is ignored."""
        try:
            offer = decode_offer(message)
            if not hmac.compare_digest(offer.token, self._token):
                raise ValueError("it does not show the token of this landing pool")
            self._begin(offer)
        except (ValueError, UcxFailure) as cause:
            log.warning("an offered write was ignored", extra={"reason": str(cause)})

    def advance(self) -> list[bytes]:
        """Answer what is whole or has failed, end what is overdue; return the notes of what has landed."""
        notes: list[bytes] = []
        for connection, source in list(self._sources.items()):
            notes += self._answer_whole(source)
            if not source.endpoint.is_alive:
                self._end(connection)
            elif source.arrivals and self._clock() - source.arrivals[0].since_s >= PATIENCE_S:
                self._give_up(source, source.arrivals.popleft())
        return notes

    def close(self) -> None:
        for connection in list(self._sources):
            self._end(connection)

    def _begin(self, offer: Offer) -> None:
        source, write_id = self._source(offer), offer.write_id
        places = [self._landing[run.offset : run.offset + run.num_bytes] for run in offer.runs]
        if any(len(place) != run.num_bytes for place, run in zip(places, offer.runs, strict=True)):
            self._refuse(source, write_id, sum(map(num_messages, offer.runs)))
            raise ValueError(f"it lies outside a landing pool of {len(self._landing)} bytes")
        messages = chain.from_iterable(map(messages_of, places))
        requests = deque(self._receiving.receive(place, write_id.tag(index)) for index, place in enumerate(messages))
        source.arrivals.append(_Arrival(write_id, offer.note, requests, len(requests), self._clock()))

    def _give_up(self, source: _Source, arrival: _Arrival) -> None:
        log.warning("a write has not come in time", extra={"seconds": PATIENCE_S, "missing": len(arrival.missing)})
        arrival.missing.clear()
        self._refuse(source, arrival.write_id, arrival.num_messages)

    def _refuse(self, source: _Source, write_id: WriteId, num_messages: int) -> None:
        """Whatever still comes of this write goes nowhere."""
        for index in range(num_messages):
            self._receiving.discard(write_id.tag(index))
        self._answer(source, write_id, has_landed=False)

    def _source(self, offer: Offer) -> _Source:
        known = self._sources.get(offer.write_id.connection)
        if known is None or not known.endpoint.is_alive:
            self._end(offer.write_id.connection)
            known = self._sources[offer.write_id.connection] = _Source(self._sending.connect(offer.reply_to))
        return known

    def _answer_whole(self, source: _Source) -> list[bytes]:
        notes: list[bytes] = []
        waiting = deque[_Arrival]()
        for arrival in source.arrivals:
            if arrival.is_whole():
                notes += filter(None, [arrival.note])
                self._answer(source, arrival.write_id, has_landed=True)
            else:
                waiting.append(arrival)
        source.arrivals = waiting
        return notes

    def _answer(self, source: _Source, write_id: WriteId, *, has_landed: bool) -> None:
        answer = np.frombuffer(encode_answer(Answer(write_id, has_landed)), np.uint8)
        try:
            source.endpoint.send(answer, ANSWER)
        except UcxFailure as cause:
            # Whoever does not hear the answer sees that the connection has ended.
            log.info("a write was not answered", extra={"reason": str(cause)})

    def _end(self, connection: int) -> None:
        source = self._sources.pop(connection, None)
        if source is not None:
            source.endpoint.close()
            source.arrivals.clear()
