"""The gauges of the landing pool, as the timer saw it last: the pool itself belongs to the control thread."""

from collections.abc import Mapping

from twostep.kv_transfer.landing import LandingPool
from twostep.node.metrics import NodeMetrics


class LandingGauges:
    """Publishes bytes by state, and how often an extent was lent again without proof that it was quiet."""

    def __init__(self, metrics: NodeMetrics, landing: LandingPool) -> None:
        self._landing = landing
        self._seen = landing.census()
        metrics.observe("landing_bytes", "Landing pool bytes by state.", "state", self._bytes)
        metrics.observe_count(
            "unproven_reuse", "Landing extents lent again after their cooldown alone.", lambda: landing.unproven_reuse
        )

    def refresh(self) -> None:
        """Take a picture of the pool; called by the timer."""
        self._seen = self._landing.census()

    def _bytes(self) -> Mapping[str, float]:
        seen = self._seen
        return {"free": seen.free_bytes, "lent": seen.lent_bytes, "draining": seen.draining_bytes}
