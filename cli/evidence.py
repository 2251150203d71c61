"""What the nodes' own metrics say about where prompt tokens were computed and which way their KV went."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from twostep.cli.cluster import Cluster, NodeAddress
from twostep.cli.node_client import fetch_transport
from twostep.core.errors import NodeUnavailable

SCRAPE_S = 5.0


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over the nodes of one pool, since they started."""

    prompt_tokens_computed: int
    handoff_bytes: int


@dataclass(frozen=True, slots=True)
class Evidence:
    prefill: Counters
    decode: Counters
    transports: frozenset[str]

    def sentence(self) -> str:
        """Say what was counted."""
        return (
            f"prefill computed {self.prefill.prompt_tokens_computed} prompt tokens, decode computed"
            f" {self.decode.prompt_tokens_computed}; {self.decode.handoff_bytes:,} bytes of KV crossed between them"
            f" over {' and '.join(sorted(self.transports))}"
        )

    def objections(self) -> list[str]:
        """Say what contradicts a handoff over NIXL."""
        doubts = {
            "prefill computed no prompt token": self.prefill.prompt_tokens_computed == 0,
            f"decode computed {self.decode.prompt_tokens_computed} prompt tokens": self.decode.prompt_tokens_computed > 0,
            "no bytes landed on decode": self.decode.handoff_bytes == 0,
            "the KV did not cross over nixl": self.transports != {"nixl"},
        }
        return [doubt for doubt, is_true in doubts.items() if is_true]


async def gather_evidence(cluster: Cluster) -> Evidence:
    """Ask every node. Raises ServingError when one does not answer."""
    transports = await asyncio.gather(*(fetch_transport(node.grpc) for node in (*cluster.prefill, *cluster.decode)))
    return Evidence(
        prefill=await _counters(cluster.prefill),
        decode=await _counters(cluster.decode),
        transports=frozenset(transports),
    )


async def _counters(nodes: Sequence[NodeAddress]) -> Counters:
    return counters([await _scrape(node) for node in nodes])


async def _scrape(node: NodeAddress) -> str:
    async with httpx.AsyncClient(timeout=SCRAPE_S, trust_env=False) as client:
        try:
            return (await client.get(f"http://{node.metrics}/metrics")).text
        except httpx.TransportError as cause:
            raise NodeUnavailable(f"{node.name}: no metrics from {node.metrics}: {cause}") from cause


def counters(pages: Sequence[str]) -> Counters:
    """Return the sums over the Prometheus pages of some nodes."""
    totals = {"twostep_prompt_tokens_computed_total": 0.0, "twostep_handoff_bytes_total": 0.0}
    for page in pages:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name in totals:
                    totals[sample.name] += sample.value
    computed, moved = totals.values()
    return Counters(int(computed), int(moved))
