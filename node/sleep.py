"""Says when a node finds that it was stopped or starved for a while."""

import logging

from twostep.node.metrics import NodeMetrics

log = logging.getLogger(__name__)


def note_sleep(asleep_s: float, metrics: NodeMetrics) -> None:
    """Count the seconds that the node's timers leave out, if there are any."""
    if asleep_s:
        metrics.asleep_seconds.inc(asleep_s)
        log.warning("this process was stopped or starved; its timers leave that out", extra={"seconds": round(asleep_s, 3)})
