"""A future that only its maker can end: a waiter that is cancelled changes nothing for anybody else."""

from concurrent.futures import Future
from typing import Any


def promise() -> "Future[Any]":
    """Return a future that cannot be cancelled, so that ending it never fails."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
