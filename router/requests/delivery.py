"""Brings the accepted tokens of one request to where they go, and notes whether more are wanted."""

from collections.abc import Sequence
from typing import Protocol

from twostep.core.clock import Clock


class TokenSink(Protocol):
    """Where the tokens of an answer go."""

    is_satisfied: bool
    """Whether no more tokens are wanted."""

    def put(self, tokens: Sequence[int]) -> bool:
        """Take newly accepted tokens; returns whether they have gone out, which needed no waiting. Else `settle` lets them."""

    async def settle(self) -> None:
        """Let what was put go out; waits while nobody takes it."""


class Delivery:
    """Tokens that are added together are put together. `first_out` is when the first had gone out."""

    def __init__(self, sink: TokenSink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._fresh: list[int] = []
        self._is_out = True
        self.first_out: float | None = None

    @property
    def is_satisfied(self) -> bool:
        """Whether no more tokens are wanted: what is added from then on goes nowhere."""
        return self._sink.is_satisfied

    def add(self, token: int) -> None:
        self._fresh.append(token)

    def put_out(self) -> bool:
        """Put what was added; returns whether all has gone out."""
        fresh, self._fresh = self._fresh, []
        if fresh and not self._sink.is_satisfied:
            self._note_out(self._sink.put(fresh))
        return self._is_out

    async def settle(self) -> None:
        """Put what was added, and wait until all has gone out."""
        if not self.put_out():
            await self._sink.settle()
            self._note_out(True)

    def _note_out(self, is_out: bool) -> None:
        self._is_out = is_out
        if is_out and self.first_out is None:
            self.first_out = self._clock()
