"""Whether the router can serve, and what it knows of its nodes: the page behind /ready."""

from collections import Counter
from typing import Any

from twostep.core.errors import NoReadyNode
from twostep.router.config import RouterConfig
from twostep.router.front.openai.accept import ModelLimits
from twostep.router.metrics import Metrics
from twostep.router.nodes.client import PEER_STATES
from twostep.router.nodes.connection import NodeConnection
from twostep.router.nodes.pool import NodePool


class Readiness:
    """Ready means that requests can be served, or may wait here until they can."""

    def __init__(self, pool: NodePool, config: RouterConfig) -> None:
        self._pool = pool
        self._allow_decode_alone = config.allow_decode_alone
        self._may_wait = config.node_wait_s > 0
        self._limits: tuple[int, ModelLimits] | None = None
        """What was found when so many nodes had come or gone: ten thousand are not asked for each request."""

    @property
    def is_ready(self) -> bool:
        return self.can_serve or (self._may_wait and not self._pool.discovery.freshness.trouble)

    @property
    def can_serve(self) -> bool:
        """Whether there is a pair between which bytes have really moved; or a decode node, where it may serve alone."""
        return self._pool.fleet.has_pair() or (self._allow_decode_alone and any(True for _ in self._pool.fleet.decode))

    def report(self) -> dict[str, Any]:
        pairs = self._pool.proven_pairs()
        return {
            "ready": self.is_ready,
            "proven_pairs": len(pairs),
            "pairs": [
                {"prefill": str(p), "decode": str(d), "path": state.path, "bytes_per_s": state.bytes_per_s}
                for p, d, state in pairs
            ],
            "discovery": {
                "source": self._pool.discovery.source,
                "stale_s": self._pool.discovery.freshness.stale_s,
                "trouble": self._pool.discovery.freshness.trouble,
            },
            "nodes": [_node_report(node) for node in self._pool.nodes],
        }

    def versions(self) -> list[dict[str, str]]:
        """Return what runs on each node that has told."""
        known = [node.description for node in self._pool.nodes if node.description]
        return [{"node": str(n.ref), "role": n.role, "version": n.version, "kernels": n.kernels} for n in known]

    def limits(self) -> ModelLimits:
        """Return what the ready decode nodes can take. Raises NoReadyNode."""
        num_changes = self._pool.fleet.num_changes
        if self._limits is None or self._limits[0] != num_changes:
            self._limits = (num_changes, self._find_limits())
        return self._limits[1]

    def _find_limits(self) -> ModelLimits:
        nodes = [view.description for view in self._pool.fleet.decode]
        if not nodes:
            raise NoReadyNode("no decode node is ready", retry_after_s=1.0)
        return ModelLimits(
            max_model_tokens=max(node.geometry.max_model_tokens for node in nodes),
            max_prompt_tokens=max(node.max_prompt_tokens for node in nodes),
            vocab_size=max(node.fingerprint.vocab_size for node in nodes),
        )

    def update(self, metrics: Metrics) -> None:
        # Nodes come and go: what was said of those that are gone would be said for ever.
        metrics.node_ready.clear()
        for role in ("prefill", "decode"):
            metrics.nodes.labels(role).set(sum(node.role == role for node in self._pool.nodes))
        metrics.discovery_stale.set(self._pool.discovery.freshness.stale_s)
        metrics.discovery_failures.set(self._pool.discovery.freshness.num_failures)
        prefixes = self._pool.prefixes
        metrics.prefix_bytes.set(prefixes.num_bytes)
        metrics.prefix_forgotten.set(prefixes.num_forgotten)
        metrics.prefix_gaps.set(prefixes.num_gaps)
        for node in self._pool.nodes:
            metrics.node_ready.labels(node.client.address, node.role).set(node.is_ready)
        pairs = Counter(state for node in self._pool.nodes if node.role == "prefill" for state in _peer_states(node))
        speeds = [state.bytes_per_s for _, _, state in self._pool.proven_pairs()]
        metrics.slowest_pair.set(min(speeds, default=0.0))
        for state in PEER_STATES.values():
            metrics.pairs.labels(state).set(pairs[state])


def _peer_states(node: NodeConnection) -> list[str]:
    return [peer.state for peer in node.status.peers.values()] if node.status else []


def _node_report(node: NodeConnection) -> dict[str, Any]:
    peers = node.status.peers if node.status else {}
    return {
        "role": node.role,
        "address": node.client.address,
        "node": str(node.description.ref) if node.description else None,
        "ready": node.is_ready,
        "reason": node.trouble,
        "requests": len(node.live),
        "peers": {str(ref): f"{peer.state} {peer.reason}".strip() for ref, peer in peers.items()},
    }
