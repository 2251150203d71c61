"""The nodes of a running `twostep up`, as their address files, metrics and ledgers show them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from twostep.cli.node_client import Ledger, fetch_ledger
from twostep.tests.chaos.waiting import until

RELEASE_S = 60.0


@dataclass(frozen=True, slots=True)
class RunningNode:
    name: str
    grpc: str
    metrics: str

    def counted(self, metric: str) -> int:
        """Return a counter's value, 0 before its first event."""
        page = httpx.get(f"http://{self.metrics}/metrics", trust_env=False).text
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        return int(sum(sample.value for sample in samples if sample.name == metric))

    async def ledger(self) -> Ledger:
        return await fetch_ledger(self.grpc)


def nodes_of(folder: Path, role: str) -> list[RunningNode]:
    """Return the nodes of one role that `twostep up` keeps its files of in `folder`."""
    told = {path.stem: json.loads(path.read_text()) for path in sorted(folder.rglob(f"*{role}-*.json"))}
    return [RunningNode(name, addresses["grpc"], addresses["metrics"]) for name, addresses in told.items()]


async def require_nothing_held(nodes: Sequence[RunningNode]) -> None:
    """Wait until no block or landing byte has an owner: a client may have its answer a little before nodes let go of it."""

    async def held(node: RunningNode) -> str:
        ledger = await node.ledger()
        assert ledger.orphaned_blocks == 0
        assert ledger.free_blocks + ledger.cached_blocks + ledger.referenced_blocks == ledger.total_blocks
        is_free = not ledger.referenced_blocks and not ledger.holdings and ledger.landing_free_bytes == ledger.landing_bytes
        return "" if is_free else str(ledger)

    for node in nodes:
        await until(lambda node=node: held(node), within_s=RELEASE_S)  # type: ignore[misc]
