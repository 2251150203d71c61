"""Holds the results of a method back until a test lets them go."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from twostep.kv_transfer.promise import promise


class Held:
    """Stands in for a method that returns a concurrent future: its results arrive when a test lets them."""

    def __init__(self, call: Callable[..., "Future[Any]"]) -> None:
        self._call = call
        self._held: list[tuple[Future[Any], Future[Any]]] = []
        self.called = asyncio.Event()
        self.num_calls = 0

    def __call__(self, *arguments: Any) -> "Future[Any]":
        real, held = self._call(*arguments), promise()
        self._held.append((real, held))
        self.num_calls += 1
        self.called.set()
        return held

    async def resolved(self) -> None:
        """Wait until the real results are there, held back."""
        await asyncio.gather(*(asyncio.wrap_future(real) for real, _ in self._held))

    def let_go(self) -> None:
        for real, held in self._held:
            if error := real.exception(timeout=5):
                held.set_exception(error)
            else:
                held.set_result(real.result())
        self._held.clear()


def hold(owner: Any, method: str) -> Held:
    held = Held(getattr(owner, method))
    setattr(owner, method, held)
    return held
