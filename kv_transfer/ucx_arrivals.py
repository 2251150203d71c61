"""Receives the writes that peers offer, straight into the landing pool and nowhere else, and answers each of them once.

A write whose peer has died is over at once; one that is not whole after `PATIENCE_S` ends together with everything else of
that connection. From then on none of its bytes land: what is not matched yet is given up, what is under way ends with it.
"""

import hmac
import logging
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from twostep.core.clock import Clock
from twostep.kv_transfer.transport import WriteState
from twostep.kv_transfer.ucx_letters import ANSWER, Answer, Offer, WriteName, decode_offer, encode_answer
from twostep.kv_transfer.ucx_worker import Bytes, Endpoint, Request, UcxFailure, UcxWorker

PATIENCE_S = 60.0
"""Longer than any sender waits for a write that makes no progress."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Arrival:
    name: WriteName
    note: bytes
    requests: tuple[Request, ...]
    since_s: float


@dataclass(slots=True)
class _Source:
    """One connection of one peer, and its writes that have been offered and not answered."""

    endpoint: Endpoint
    arrivals: deque[_Arrival] = field(default_factory=deque)


class Arrivals:
    """Writes into `landing`, from whoever shows `token`."""

    def __init__(self, worker: UcxWorker, landing: Bytes, token: bytes, clock: Clock) -> None:
        self._worker = worker
        self._landing = landing
        self._token = token
        self._clock = clock
        self._sources: dict[int, _Source] = {}

    def take(self, letter: bytes) -> None:
        """Begin to receive what is offered. What makes no sense is ignored."""
        try:
            offer = decode_offer(letter)
            if not hmac.compare_digest(offer.token, self._token):
                raise ValueError("it does not show the token of this landing pool")
            self._begin(offer)
        except (ValueError, UcxFailure) as cause:
            logger.warning("an offered write was ignored", extra={"reason": str(cause)})

    def advance(self) -> list[bytes]:
        """Answer what is whole or has failed, end what is overdue; return the notes of what has landed."""
        notes: list[bytes] = []
        for session, source in list(self._sources.items()):
            notes += self._answer_all(source)
            is_overdue = source.arrivals and self._clock() - source.arrivals[0].since_s >= PATIENCE_S
            if is_overdue or not source.endpoint.is_alive:
                self._end(session)
        return notes

    def close(self) -> None:
        for session in list(self._sources):
            self._end(session)

    def _begin(self, offer: Offer) -> None:
        source = self._source(offer)
        name, places = offer.name, [self._landing[run.offset : run.offset + run.num_bytes] for run in offer.runs]
        if any(len(place) != run.num_bytes for place, run in zip(places, offer.runs, strict=True)):
            for index in range(len(offer.runs)):
                self._worker.turn_away(name.tag(index))
            self._answer(source, name, has_landed=False)
            raise ValueError(f"it lies outside a landing pool of {len(self._landing)} bytes")
        requests = tuple(self._worker.receive(place, name.tag(index)) for index, place in enumerate(places))
        source.arrivals.append(_Arrival(name, offer.note, requests, self._clock()))

    def _source(self, offer: Offer) -> _Source:
        known = self._sources.get(offer.name.session)
        if known is None or not known.endpoint.is_alive:
            self._end(offer.name.session)
            known = self._sources[offer.name.session] = _Source(self._worker.connect(offer.reply_to))
        return known

    def _answer_all(self, source: _Source) -> list[bytes]:
        notes, waiting = [], deque[_Arrival]()
        for arrival in source.arrivals:
            state = self._state(arrival)
            if state is WriteState.PENDING:
                waiting.append(arrival)
                continue
            if state is WriteState.DONE and arrival.note:
                notes.append(arrival.note)
            self._answer(source, arrival.name, has_landed=state is WriteState.DONE)
        source.arrivals = waiting
        return notes

    def _state(self, arrival: _Arrival) -> WriteState:
        if not all(request.is_over for request in arrival.requests):
            return WriteState.PENDING
        states = {request.state(self._worker.errors) for request in arrival.requests}
        return WriteState.FAILED if WriteState.FAILED in states else WriteState.DONE

    def _answer(self, source: _Source, name: WriteName, *, has_landed: bool) -> None:
        answer = np.frombuffer(encode_answer(Answer(name, has_landed)), np.uint8)
        try:
            source.endpoint.send(answer, ANSWER)
        except UcxFailure as cause:
            # Whoever does not hear the answer sees that the connection has ended.
            logger.info("a write was not answered", extra={"reason": str(cause)})

    def _end(self, session: int) -> None:
        source = self._sources.pop(session, None)
        if source is not None:
            source.endpoint.close()
            source.arrivals.clear()
