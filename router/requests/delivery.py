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
    """`tokens` are all that have been accepted, and grow: those that come together are put together.

    `first_out` is when the first had gone out.
    """

    def __init__(self, tokens: Sequence[int], sink: TokenSink, clock: Clock) -> None:
        self._tokens = tokens
        self._sink = sink
        self._clock = clock
        self._num_put = 0
        self._is_out = True
        self.first_out: float | None = None

    def put_out(self) -> bool:
        """Put what has been accepted since, unless the sink wants no more; returns whether all has gone out."""
        fresh = self._tokens[self._num_put :]
        if fresh and not self._sink.is_satisfied:
            self._num_put += len(fresh)
            # What says nothing yet, as half a character, is out at once, and what waits before it is not.
            self._is_out = self._sink.put(fresh) and self._is_out
            if self._is_out and self.first_out is None:
                self.first_out = self._clock()
        return self._is_out

    async def settle(self) -> None:
        """Put what has been accepted since, and wait until all has gone out."""
        if not self.put_out():
            await self._sink.settle()
            self._is_out = True
            if self.first_out is None:
                self.first_out = self._clock()
