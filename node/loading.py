"""Stands in for a node whose model still loads: the process listens and answers before it can serve."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from twostep.core.errors import NodeUnavailable

T = TypeVar("T")


class Loading(Generic[T]):
    """Something that will be there later."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self._value: T | None = None

    @property
    def value(self) -> T | None:
        return self._value

    def put(self, value: T) -> None:
        self._value = value

    def get(self) -> T:
        """Return the value. Raises NodeUnavailable while it is not there."""
        if self._value is None:
            raise NodeUnavailable(f"this node cannot serve yet: {self.reason}")
        return self._value


def call_in_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run a long blocking `call` in a thread of its own, which does not keep the process from exiting."""
    future: Future[T] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the future
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(future)
