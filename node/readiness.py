"""Decides whether a loaded node may be given work.

It may not while it drains or is cordoned, after a fault, with accounts that do not add up, with an engine that stands still, or
where KV goes a slower way than it was told to.
"""

from twostep.core.errors import EngineFault, NodeDraining
from twostep.core.ids import NodeRef
from twostep.node.engine_feed import EngineFeed


class Readiness:
    """`stall_s`: an engine that has work but finishes no step for this long makes the node unready.

    `slow_path` is why KV goes a slower way than it may; empty when it does not.
    """

    def __init__(self, feed: EngineFeed, stall_s: float, *, slow_path: str = "") -> None:
        self._feed = feed
        self._stall_s = stall_s
        self._slow_path = slow_path
        self._stalled_s = 0.0
        self.is_draining = False
        self.fault: EngineFault | None = None
        self.cordon = ""
        """Why somebody has taken the node out of service."""
        self.damage = ""
        """An account that does not add up; nothing but a new start repairs that."""

    def refresh(self) -> None:
        """Take a look at the engine's progress; called by the timer."""
        self._stalled_s = self._feed.stalled_s()

    def require_open(self, node: NodeRef) -> None:
        """Raise NodeDraining for what comes anew while `node` drains or is out of service: routers hear of that later.

        Clients may read what it says: why somebody has taken the node out of service is not for them.
        """
        if self.is_draining or self.cordon:
            raise NodeDraining(f"{node} is draining")

    @property
    def reason(self) -> str:
        """Why the node is not ready; empty when it is."""
        if self.fault:
            return f"the engine has failed: {self.fault.message}"
        if self.damage:
            return f"the accounts do not add up: {self.damage}"
        if self._slow_path:
            return self._slow_path
        if self.is_draining:
            return "the node is draining"
        if self.cordon:
            return f"cordoned: {self.cordon}"
        if self._stalled_s > self._stall_s:
            return f"the engine has finished no step for {self._stalled_s:.0f} s"
        return ""
