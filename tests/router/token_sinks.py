"""Clients of a request that are no more than what they do with its tokens."""

from collections.abc import Callable, Sequence


class AtOnce:
    """A TokenSink that lets `take` have tokens as they come; that says whether more are wanted."""

    def __init__(self, take: Callable[[Sequence[int]], bool]) -> None:
        self._take = take
        self.is_satisfied = False

    def put(self, tokens: Sequence[int]) -> bool:
        self.is_satisfied = not self._take(tokens)
        return True

    async def settle(self) -> None:
        """Nothing has to go out."""
