"""The token streams: one per router, one message for all tokens of an engine step."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass, field

from twostep.core.bill import DecodeBill
from twostep.core.errors import ServingError
from twostep.core.ids import Attempt, RequestId, RouterId
from twostep.core.request import FinishReason, TokenEvent


@dataclass(frozen=True, slots=True)
class Ended:
    """The last word about one attempt of a request: how it finished or why it failed, and what it took.

    `num_tokens` counts its output tokens, forced ones included: so the router knows whether it saw all of them.
    """

    request: RequestId
    attempt: Attempt
    bill: DecodeBill
    num_tokens: int
    finish: FinishReason | None = None
    error: ServingError | None = None


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """What happened since the last message: usually one engine step."""

    tokens: tuple[TokenEvent, ...]
    ended: tuple[Ended, ...]


@dataclass(slots=True)
class _Outbox:
    tokens: list[TokenEvent] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    unread: Counter[RequestId] = field(default_factory=Counter)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    reader: int = 0

    def take(self) -> TokenBatch | None:
        if not self.tokens and not self.ended:
            return None
        batch = TokenBatch(tuple(self.tokens), tuple(self.ended))
        self.tokens.clear()
        self.ended.clear()
        self.unread.clear()
        return batch


class TokenStreams:
    """Outboxes by router. Owned by the control thread.

    A reader wakes only after the callback that emitted, so it finds a whole step; a slow one finds several. `on_read` is
    told whose tokens were taken.
    """

    def __init__(self, on_read: Callable[[Collection[RequestId]], None] = lambda _: None) -> None:
        self._on_read = on_read
        self._outboxes: dict[RouterId, _Outbox] = {}
        self._closed = False

    def emit(self, router: RouterId, token: TokenEvent) -> None:
        outbox = self._outbox(router)
        outbox.tokens.append(token)
        outbox.unread[token.request] += 1
        outbox.filled.set()

    def end(self, router: RouterId, ended: Ended) -> None:
        outbox = self._outbox(router)
        outbox.ended.append(ended)
        outbox.filled.set()

    def backlog(self, router: RouterId) -> int:
        """Return how many tokens and endings this router has not read yet."""
        outbox = self._outboxes.get(router)
        return len(outbox.tokens) + len(outbox.ended) if outbox else 0

    def num_unread(self, router: RouterId, request: RequestId) -> int:
        """Return how many tokens of the request this router has not read yet."""
        outbox = self._outboxes.get(router)
        return outbox.unread[request] if outbox else 0

    async def read(self, router: RouterId) -> AsyncGenerator[TokenBatch, None]:
        """Yield batches until a newer reader of the same router takes over or the node closes."""
        outbox = self._outbox(router)
        outbox.reader += 1
        outbox.filled.set()
        reader = outbox.reader
        try:
            while outbox.reader == reader:
                outbox.filled.clear()
                read = frozenset(outbox.unread)
                if batch := outbox.take():
                    self._on_read(read)
                    yield batch
                elif self._closed:
                    return
                else:
                    await outbox.filled.wait()
        finally:
            if outbox.reader == reader and not self.backlog(router):
                self._outboxes.pop(router, None)

    def forget(self, router: RouterId) -> None:
        """Drop what a router that is gone will never read."""
        if outbox := self._outboxes.pop(router, None):
            outbox.reader += 1
            outbox.filled.set()

    def close(self) -> None:
        """Let every reader finish what is there and leave."""
        self._closed = True
        for outbox in self._outboxes.values():
            outbox.filled.set()

    def _outbox(self, router: RouterId) -> _Outbox:
        return self._outboxes.setdefault(router, _Outbox())
