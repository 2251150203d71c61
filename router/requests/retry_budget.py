"""Decides whether one more attempt may be made, lest many requests that fail together keep a sick cluster from recovering."""

from twostep.core.clock import Clock
from twostep.core.errors import NodeDraining, NodeReplaced, NodeUnreachable, ServingError


class RetryBudget:
    """A bucket of retries for all requests of a router: each new request adds `share` of one, each retry takes one.

    It holds `reserve`, which also come in again within a minute whatever is asked; at first it is full. (The retry budget of
    Finagle and Linkerd.)
    """

    def __init__(self, share: float, reserve: int, clock: Clock) -> None:
        self._share = share
        self._reserve = reserve
        self._clock = clock
        self._left = float(reserve)
        self._filled_at = clock()

    def note_request(self) -> None:
        self._add(self._share)

    def take(self, error: ServingError) -> bool:
        """Return whether a request that failed with `error` may be tried again, and count that.

        The loss of a node costs nothing, nor does one that drains: it is over with that node, which gets nothing more and so
        fails each request once, and no stream should end for it.
        """
        if isinstance(error, NodeUnreachable | NodeReplaced | NodeDraining):
            return True
        now = self._clock()
        self._add((now - self._filled_at) * self._reserve / 60.0)
        self._filled_at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def _add(self, retries: float) -> None:
        self._left = min(self._reserve, self._left + retries)
