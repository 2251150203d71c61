"""Routers, prefill nodes and decode nodes as real processes over real NIXL, while they run."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from twostep.cli.node_client import fetch_ledger
from twostep.core.errors import ServingError
from twostep.tests.chaos.plan import Plan
from twostep.tests.chaos.programs import Program
from twostep.tests.chaos.questions import Question
from twostep.tests.chaos.streams import DEADLINE_S, Stream
from twostep.tests.chaos.waiting import until

BASELINE_S = 60.0
SETTLE_S = 60.0


@dataclass(slots=True)
class Town:
    """`clients` speak to the routers, one to each."""

    prefill: list[Program]
    decode: list[Program]
    routers: list[Program] = field(default_factory=list)
    clients: list[httpx.AsyncClient] = field(default_factory=list)

    @property
    def nodes(self) -> list[Program]:
        return [*self.prefill, *self.decode]

    @property
    def programs(self) -> list[Program]:
        return [*self.nodes, *self.routers]

    @asynccontextmanager
    async def asking(self, questions: Sequence[Question], *, router: int = 0) -> AsyncIterator[list[Stream]]:
        """Ask all questions; inside the block they are being answered, and after it all answers have ended."""
        streams = [Stream(question) for question in questions]
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as listening:
            for stream in streams:
                listening.create_task(stream.listen(self.clients[router]))
            yield streams

    async def answers_rightly(self, questions: Sequence[Question]) -> None:
        """Ask all questions at once; every answer must be that of an undisturbed engine."""
        async with self.asking(questions) as streams:
            pass
        require_right(streams)

    async def settled(self, *, num_pairs: int | None = None) -> None:
        """Wait until every router knows that bytes have moved between so many pairs of ready nodes, by default all."""
        wanted = len(self.prefill) * len(self.decode) if num_pairs is None else num_pairs

        async def missing() -> str:
            reports = [await ready_report(client) for client in self.clients]
            is_missing = any(report.get("proven_pairs") != wanted for report in reports)
            return f"{reports}{''.join(program.last_words for program in self.programs)}" if is_missing else ""

        await until(missing, within_s=SETTLE_S)

    async def at_baseline(self) -> None:
        """Wait until no node holds anything for anybody; no block may be an orphan at any moment."""
        for node in self.nodes:
            await until(lambda node=node: held_at(node), within_s=BASELINE_S)  # type: ignore[misc]

    async def is_well(self, streams: Sequence[Stream]) -> None:
        """Require that every answer was right, and wait until all nodes are ready again and hold nothing."""
        require_right(streams)
        await self.settled()
        await self.at_baseline()


def require_right(streams: Sequence[Stream]) -> None:
    assert [stream for stream in streams if not stream.is_right] == []


async def ready_report(client: httpx.AsyncClient) -> dict[str, object]:
    """Return what a router knows of its nodes; nothing when it does not answer."""
    try:
        report: dict[str, object] = (await client.get("/ready")).json()
    except httpx.TransportError:
        return {}
    return report


async def held_at(node: Program) -> str:
    """Say what the node still holds for whom; nothing when all its memory is free. An orphan is a failure at any moment."""
    try:
        ledger = await fetch_ledger(node.addresses["grpc"])
    except ServingError as error:
        return f"{node.name} does not answer: {error}"
    assert ledger.orphaned_blocks == 0, ledger
    assert ledger.free_blocks + ledger.cached_blocks + ledger.referenced_blocks == ledger.total_blocks
    is_free = not ledger.referenced_blocks and not ledger.holdings and ledger.landing_free_bytes == ledger.landing_bytes
    return "" if is_free else str(ledger)


async def counted(node: Program, metric: str, **labels: str) -> float:
    """Return one of the node's metrics, summed over all samples that carry `labels`."""
    async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
        page = (await http.get(f"http://{node.addresses['metrics']}/metrics")).text
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == metric and labels.items() <= sample.labels.items())


@asynccontextmanager
async def town(plan: Plan, *, num_pairs: int | None = None) -> AsyncIterator[Town]:
    """Start what is planned, and wait until bytes have moved between so many pairs, by default all."""
    here = Town(plan.prefill_programs(), plan.decode_programs())
    with ended_at_last(here):
        for node in here.nodes:
            node.start()
        for node in here.nodes:
            await node.listening()
        here.routers = plan.router_programs(here.prefill, here.decode)
        for router in here.routers:
            await router.restart()
        async with AsyncExitStack() as clients:
            here.clients = [await clients.enter_async_context(client_of(router)) for router in here.routers]
            await here.settled(num_pairs=num_pairs)
            yield here


def client_of(router: Program) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{router.addresses['http']}", timeout=DEADLINE_S, trust_env=False)


@contextmanager
def ended_at_last(here: Town) -> Iterator[None]:
    """Make sure that no program outlives the block."""
    try:
        yield
    finally:
        for program in here.programs:
            program.end()
