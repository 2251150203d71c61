"""The gauges of a node's peers, as the timer saw them last: the peers themselves belong to the control thread."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from twostep.node.description import PeerStage, PeerState
from twostep.node.metrics import NodeMetrics


class PeerGauges:
    """Publishes how far this node has got with its peers, how fast each path is, and what it is."""

    def __init__(self, metrics: NodeMetrics, states: Callable[[], Sequence[PeerState]], path: str) -> None:
        self._states = states
        self._seen = tuple(states())
        metrics.observe("peers", "Peers by stage.", "stage", self._stages)
        metrics.observe(
            "peer_bytes_per_second",
            "Bandwidth of handoffs lately, before the first of a probe.",
            "peer",
            self._bandwidths,
        )
        metrics.observe("peer_paths", "Peers by what the last probe of them went over.", "path", self._paths)
        metrics.observe("path", "1 for what carries KV between this node and its peers.", "path", lambda: {path: 1.0})

    def refresh(self) -> None:
        """Take a picture of the peers; called by the timer."""
        self._seen = tuple(self._states())

    def _stages(self) -> Mapping[str, float]:
        stages = [state.stage for state in self._seen]
        return {stage.value: stages.count(stage) for stage in PeerStage}

    def _paths(self) -> Mapping[str, float]:
        return {path: float(count) for path, count in Counter(state.path for state in self._seen).items()}

    def _bandwidths(self) -> Mapping[str, float]:
        return {state.node.id: state.bytes_per_s for state in self._seen if state.bytes_per_s}
