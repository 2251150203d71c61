"""Routers, prefill nodes and decode nodes as real processes over real NIXL, with the fake model and short timers."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from twostep.cli.node_client import fetch_ledger
from twostep.core.errors import ServingError
from twostep.tests.chaos.network import INTERFACE, Network
from twostep.tests.chaos.programs import Program
from twostep.tests.chaos.questions import Question, Stream
from twostep.tests.chaos.waiting import until

Settings = Mapping[str, object]
MODEL = "fake:vocab_size=128,step_s=0.01"
NODE: Settings = {
    "model": MODEL,
    "engine.dtype": "float32",
    "engine.kv_bytes": 8 << 20,
    "engine.layer_group": 2,
    "timers.progress_s": 1.5,
    "timers.retry_s": 2,
    "timers.call_s": 1,
    "timers.handshake_s": 3,
    "timers.handshake_retry_s": 0.2,
    "timers.landing_cooldown_s": 0.5,
    "timers.tick_s": 0.1,
}
DECODE: Settings = {"landing_bytes": 2 << 20}
ROUTER: Settings = {
    "model": MODEL,
    "port": 0,
    "lease_s": 1.5,
    "node_lost_s": 1,
    "request_timeout_s": 30,
    "recovery_wait_s": 5,
}
DEADLINE_S = 35.0
"""No stream may last longer, whatever happens: the requests' own deadline and some room."""
BASELINE_S = 15.0
SETTLE_S = 20.0


@dataclass(slots=True)
class Town:
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

    async def settled(self, *, num_pairs: int = 0) -> None:
        """Wait until every router knows that bytes have moved between so many pairs of ready nodes, by default all."""
        num_pairs = num_pairs or len(self.prefill) * len(self.decode)

        async def missing() -> str:
            reports = [await ready_report(client) for client in self.clients]
            return str(reports) if any(report.get("proven_pairs") != num_pairs for report in reports) else ""

        await until(missing, within_s=SETTLE_S)

    async def at_baseline(self) -> None:
        """Wait until no node holds anything for anybody; no block may be an orphan at any moment."""
        for node in self.nodes:
            await until(lambda node=node: held_at(node), within_s=BASELINE_S)  # type: ignore[misc]


async def heard(stream: Stream, num_tokens: int) -> None:
    """Wait until the client has heard so many tokens."""

    async def missing() -> str:
        assert len(stream.text) >= num_tokens or not stream.is_over, stream
        return "" if len(stream.text) >= num_tokens else f"{num_tokens} tokens of {stream}"

    await until(missing, within_s=DEADLINE_S)


async def over(stream: Stream) -> None:
    """Wait until the client has heard the end."""

    async def missing() -> str:
        return "" if stream.is_over else f"the end of {stream}"

    await until(missing, within_s=DEADLINE_S)


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


def counted(node: Program, metric: str, **labels: str) -> float:
    """Return one of the node's metrics, summed over all samples that carry `labels`."""
    page = httpx.get(f"http://{node.addresses['metrics']}/metrics", trust_env=False, timeout=5).text
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == metric and labels.items() <= sample.labels.items())


@dataclass(frozen=True, slots=True)
class Place:
    """Where programs run: each on a machine of its own in `network`, or all on this one. `environment` is added to theirs."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    network: Network | None = None

    def program(self, name: str, module: str, settings: Settings) -> Program:
        if self.network is None:
            return Program(name, module, self.folder, settings, environment=self.environment)
        self.network.add(name)
        host = {"host": self.network.address_of(name)}
        # Machines share no memory, and their KV has only this network to cross.
        environment = {**self.environment, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": INTERFACE}
        inside = self.network.inside(name)
        return Program(name, module, self.folder, {**settings, **host}, inside=inside, environment=environment)


@contextmanager
def ended_at_last(programs: list[Program]) -> Iterator[None]:
    """Make sure that no program outlives the block."""
    try:
        yield
    finally:
        for program in programs:
            program.end()


@asynccontextmanager
async def town(
    folder: Path,
    *,
    num_prefill: int = 2,
    num_decode: int = 2,
    num_routers: int = 1,
    prefill: Settings | None = None,
    decode: Settings | None = None,
    router: Settings | None = None,
    each: Mapping[str, Settings] | None = None,
    modules: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    network: Network | None = None,
    num_pairs: int = 0,
) -> AsyncIterator[Town]:
    """Start everything and wait until bytes have moved between all pairs, or `num_pairs` of them.

    `each` are settings of single programs by name; `modules` are a test's own programs by role.
    """
    place = Place(folder, environment or {}, network)

    def nodes(role: str, count: int, settings: Settings) -> list[Program]:
        module = (modules or {}).get(role, f"twostep.{role}_node")
        names = [f"{role[0]}{number}" for number in range(count)]
        return [place.program(name, module, {**settings, "node_id": name, **(each or {}).get(name, {})}) for name in names]

    here = Town(
        nodes("prefill", num_prefill, {**NODE, **(prefill or {})}),
        nodes("decode", num_decode, {**NODE, **DECODE, **(decode or {})}),
    )
    started = here.nodes
    with ended_at_last(started):
        for node in here.nodes:
            node.start()
        for node in here.nodes:
            await node.listening()
        told = {"prefill": here.prefill, "decode": here.decode}
        addresses = {role: f"[{','.join(node.addresses['grpc'] for node in nodes)}]" for role, nodes in told.items()}
        for name in [f"r{number}" for number in range(num_routers)]:
            settings = {**ROUTER, **addresses, "router_id": name, **(router or {})}
            here.routers.append(place.program(name, "twostep.router", settings))
        started += here.routers
        for program in here.routers:
            await program.restart()
        async with AsyncExitStack() as open_clients:
            for program in here.routers:
                client = httpx.AsyncClient(base_url=f"http://{program.addresses['http']}", timeout=DEADLINE_S, trust_env=False)
                here.clients.append(await open_clients.enter_async_context(client))
            await here.settled(num_pairs=num_pairs)
            yield here
