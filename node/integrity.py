"""Recomputes a node's accounts from its tables while the node has nothing to do; one that does not add up serves no more."""

import logging
from collections.abc import Callable, Sequence

from twostep.core.clock import Clock
from twostep.node.metrics import NodeMetrics
from twostep.node.readiness import Readiness

log = logging.getLogger(__name__)
Audit = Callable[[], Sequence[str]]
"""Returns what does not add up, a line each."""


class Integrity:
    """Runs its audits at most once in `pause_s`, and only while `is_idle`: they take milliseconds."""

    def __init__(
        self,
        audits: Sequence[Audit],
        is_idle: Callable[[], bool],
        readiness: Readiness,
        metrics: NodeMetrics,
        clock: Clock,
        *,
        pause_s: float,
    ) -> None:
        self._audits = audits
        self._is_idle = is_idle
        self._readiness = readiness
        self._metrics = metrics
        self._clock = clock
        self._pause_s = pause_s
        self._audited_at = clock()

    def watch(self) -> None:
        """Audit when it is time to; called by the timer."""
        if self._clock() - self._audited_at >= self._pause_s and self._is_idle():
            self.check()

    def check(self) -> tuple[str, ...]:
        """Audit now; returns what does not add up, having logged and counted it and made the node unready."""
        self._audited_at = self._clock()
        violations = tuple(line for audit in self._audits for line in audit())
        self._metrics.integrity_checks.inc()
        for violation in violations:
            self._metrics.integrity_violations.inc()
            log.error("the accounts do not add up", extra={"difference": violation})
        if violations:
            self._readiness.damage = violations[0]
        return violations


def audit_owners(known: Callable[[], frozenset[str]], owners: Callable[[], frozenset[str]]) -> tuple[str, ...]:
    """Return which requests of an engine nobody answers for any more."""
    return tuple(f"the engine knows {request}, which nobody here answers for" for request in sorted(known() - owners()))
