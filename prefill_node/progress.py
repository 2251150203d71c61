"""Tells decode nodes how far their legs are, and ends those that they no longer know."""

from collections import defaultdict
from collections.abc import Iterator

from twostep.core.errors import ServingError, StaleLeg
from twostep.core.ids import NodeRef
from twostep.node.handoff_messages import LegProgress
from twostep.prefill_node.leg import PrefillLeg
from twostep.prefill_node.legs import Legs
from twostep.prefill_node.parts import Parts


class Progress:
    """One message at a time to each decode node that legs are for; an unheard one is not repeated, the next one counts."""

    def __init__(self, parts: Parts, legs: Legs) -> None:
        self._parts = parts
        self._legs = legs
        self._told_at: dict[NodeRef, float] = {}
        self._telling: set[NodeRef] = set()

    def tell(self) -> None:
        """Send what is due; called by the timer."""
        now, pause_s = self._parts.clock(), self._parts.timers.tell_s
        by_node: defaultdict[NodeRef, list[PrefillLeg]] = defaultdict(list)
        for leg in self._legs:
            by_node[leg.id.destination].append(leg)
        self._told_at = {node: at for node, at in self._told_at.items() if node in by_node}
        for node, legs in by_node.items():
            if node not in self._telling and now >= self._told_at.get(node, 0.0) + pause_s:
                self._told_at[node] = now
                self._telling.add(node)
                self._parts.background.spawn(self._tell(node, legs))

    def due_at(self) -> Iterator[float]:
        """Return when `tell` will have something to send; who is being told now is looked at later."""
        return (at + self._parts.timers.tell_s for node, at in self._told_at.items() if node not in self._telling)

    async def _tell(self, node: NodeRef, legs: list[PrefillLeg]) -> None:
        told = [LegProgress(leg.id, leg.phase, leg.position, leg.bytes_sent) for leg in legs]
        step = self._parts.engine.load().num_steps
        try:
            unknown = await self._parts.destinations.progress(node, self._parts.node, step, told)
        except ServingError:
            # The decode node is unreachable or restarting: its own deadline, and each leg's, decide what becomes of them.
            self._parts.metrics.unheard_progress.inc()
            return
        finally:
            self._telling.discard(node)
        for leg in unknown:
            if known := self._legs.find(leg):
                known.stop(StaleLeg(f"request {leg.request}: {node} does not know this leg"), tell=False)
