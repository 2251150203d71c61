"""Judges a node by what becomes of requests there: a circuit breaker with half-open recovery (Nygard, "Release It!").

Pure: told what happens, asked whether anything may be placed there. Whether its engine moves, the node itself knows best: a
heartbeat says so (`timers.stall_s`), and a node that is frozen answers none.
"""

import enum

from twostep.core.clock import Clock
from twostep.core.errors import (
    Cancelled,
    DeadlineExceeded,
    FingerprintMismatch,
    NodeDraining,
    Overloaded,
    RequestFault,
    ServingError,
    TransferFailed,
)

FAILURES_IN_A_ROW = 5
FIRST_REST_S = 1.0
LONGEST_REST_S = 30.0
TRIAL_S = 10.0
"""A trial that has not ended after so long says nothing; then there is another."""

NOT_THE_NODES_FAULT = (Overloaded, NodeDraining, DeadlineExceeded, FingerprintMismatch, Cancelled, RequestFault, TransferFailed)
"""A node that is full, told to stop, or out of a request's time is not sick.

Which end of a pair fails, the pair's own count tells.
"""


class Health(enum.Enum):
    SOUND = enum.auto()
    RESTING = enum.auto()
    """Failed several times in a row: nothing is placed there for a while, then one request on trial."""
    ON_TRIAL = enum.auto()


class NodeHealth:
    """Of one life of a node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._health = Health.SOUND
        self._num_failures = 0
        self._rest_s = FIRST_REST_S
        self._until = 0.0

    @property
    def trouble(self) -> str:
        """Why nothing may be placed on the node now; empty when it may."""
        if self._health is Health.SOUND or self._clock() >= self._until:
            return ""
        return "one request tries it again" if self._health is Health.ON_TRIAL else f"{self._num_failures} failures in a row"

    def begin(self) -> None:
        """A request goes there: the first one after a rest is the trial."""
        if self._health is not Health.SOUND:
            self._health, self._until = Health.ON_TRIAL, self._clock() + TRIAL_S

    def note(self, error: ServingError | None) -> None:
        """A request has ended there: well, or with `error`."""
        if error is None:
            self._health, self._num_failures, self._rest_s = Health.SOUND, 0, FIRST_REST_S
        elif is_nodes_fault(error):
            self._num_failures += 1
            if self._health is Health.ON_TRIAL:
                self._rest_s = min(LONGEST_REST_S, 2 * self._rest_s)
            if self._num_failures >= FAILURES_IN_A_ROW:
                self._health, self._until = Health.RESTING, self._clock() + self._rest_s


def is_nodes_fault(error: ServingError) -> bool:
    """Return whether `error` speaks against the node; a client's error never does."""
    return error.http_status >= 500 and not isinstance(error, NOT_THE_NODES_FAULT)
