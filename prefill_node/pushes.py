"""On the engine's thread: digests what a step has just written and pushes each block once, as soon as it is full."""

import threading
from dataclasses import dataclass

from twostep.core.errors import StaleLeg
from twostep.core.ids import RequestId
from twostep.core.ticket import TokenRange
from twostep.engine.batch import Batch, Chunk
from twostep.engine.engine import Reservation
from twostep.kv_transfer.sender import OutgoingLeg
from twostep.kv_transfer.source_digests import SourceDigests


@dataclass(frozen=True, slots=True)
class _Open:
    outgoing: OutgoingLeg
    missing: TokenRange
    block_tokens: int

    def full_blocks(self, start: int, end: int) -> range:
        """Return P's blocks, counted in the missing range, that writing [start, end) completes; the last may be partial."""
        first_missing = self.missing.start // self.block_tokens
        end_block = -(-end // self.block_tokens) if end == self.missing.end else end // self.block_tokens
        return range(max(0, start // self.block_tokens - first_missing), max(0, end_block - first_missing))


class Pushes:
    """The open legs by request. Opened and closed by the control thread; `on_layers` is the engine's."""

    def __init__(self, digests: SourceDigests, block_tokens: int, num_layers: int) -> None:
        self._digests = digests
        self._block_tokens = block_tokens
        self._layers = range(num_layers)
        self._lock = threading.Lock()
        self._open: dict[RequestId, _Open] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def open(self, reservation: Reservation, outgoing: OutgoingLeg) -> None:
        """Push what the prefix cache holds already, and from now on whatever is computed."""
        leg = _Open(outgoing, outgoing.ticket.missing, self._block_tokens)
        cached = leg.full_blocks(leg.missing.start, reservation.cached_tokens)
        if cached:
            outgoing.push(self._layers, cached)
        with self._lock:
            self._open[reservation.request.id] = leg

    def close(self, request: RequestId) -> None:
        """Push nothing more of this request."""
        with self._lock:
            self._open.pop(request, None)

    def on_layers(self, batch: Batch, layers: range) -> None:
        """Take up a layer group that was written for all chunks of a batch.

        Every token is digested, be its leg open or not: its block may serve later requests.
        """
        for chunk in batch.chunks:
            self._digests.add(layers, TokenRange(chunk.start, chunk.end), chunk.blocks)
            self._push(chunk, layers)

    def _push(self, chunk: Chunk, layers: range) -> None:
        with self._lock:
            leg = self._open.get(chunk.request)
        if leg is None:
            return
        blocks = leg.full_blocks(chunk.start, chunk.end)
        if not blocks:
            return
        try:
            leg.outgoing.push(layers, blocks)
        except StaleLeg:
            # The leg has failed or was aborted; whoever did that ends the request.
            self.close(chunk.request)
