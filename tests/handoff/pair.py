"""A prefill and a decode node in one process, over real gRPC on loopback, with the fake model and the local transport."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from twostep.core.ids import NodeId, NodeRef, new_incarnation
from twostep.decode_node import service as decode_service
from twostep.decode_node.config import DecodeNodeConfig
from twostep.decode_node.node import DecodeNode
from twostep.engine.config import EngineConfig
from twostep.engine.fake_runner import FakeModel, FakeRunner
from twostep.kv_transfer.local_transport import LocalFabric, LocalTransport
from twostep.node.address import NodeAddress
from twostep.node.config import NodeConfig
from twostep.node.loading import Loading
from twostep.node.materials import Materials
from twostep.node.metrics import NodeMetrics
from twostep.node.service import add_node_service
from twostep.prefill_node import service as prefill_service
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.prefill_node.node import PrefillNode
from twostep.proto import node_pb2 as pb
from twostep.proto.rpc import new_server, open_channel
from twostep.tests.handoff.clock import ManualClock
from twostep.tests.handoff.gate import Gate
from twostep.tests.handoff.mini_router import MiniRouter, Stubs

STEP_S = 1.0
N = TypeVar("N")


@dataclass(frozen=True, slots=True)
class Pair:
    """Both nodes, their clock, and a router that has seen bytes move between them."""

    prefill: PrefillNode
    decode: DecodeNode
    router: MiniRouter
    clock: ManualClock

    def tick(self, advance_s: float = 0.0) -> None:
        """Let time pass and both nodes look at their timers, as often as they do when nothing stops them."""
        left_s = advance_s
        while left_s > 0:
            self.clock.advance(min(left_s, STEP_S))
            left_s -= STEP_S
            self._look()
        if not advance_s:
            self._look()

    def _look(self) -> None:
        self.prefill.tick()
        self.decode.tick()

    def require_clean(self) -> None:
        """Assert that nothing is referenced on either node and that all accounts add up."""
        for node in (self.prefill, self.decode):
            census = node.parts.engine.census()
            assert census.referenced == census.orphaned == 0
            assert census.free + census.cached == census.total
            assert node.integrity.check() == ()
        landing = self.decode.parts.landing.census()
        assert landing.free_bytes == landing.total_bytes
        assert len(self.decode.parts.handoffs) == len(self.prefill.parts.pushes) == 0

    async def settle(self) -> None:
        """Wait until both nodes have given everything back."""
        await _until(self._is_settled)

    async def landing_is_free(self) -> None:
        """Wait until nothing of the landing pool is lent, nor cools down."""
        await _until(self._is_landing_free)

    def _is_landing_free(self) -> bool:
        landing = self.decode.parts.landing.census()
        return landing.free_bytes == landing.total_bytes

    def _is_settled(self) -> bool:
        landing = self.decode.parts.landing.census()
        return (
            not list(self.prefill.legs)
            and self.decode.parts.handoffs.is_empty
            and landing.lent_bytes == len(self.decode.parts.background) == 0
            and all(node.parts.engine.census().referenced == 0 for node in (self.prefill, self.decode))
        )


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the nodes have no event for tests to wait for
            await asyncio.sleep(0.001)


def engine_config(*, blocks: int, model: FakeModel, **knobs: Any) -> EngineConfig:
    """An engine of `blocks` float32 blocks."""
    block_tokens = knobs.get("block_tokens", 32)
    block_bytes = model.num_layers * model.num_kv_heads * block_tokens * 2 * model.head_dim * 4
    return EngineConfig(dtype="float32", kv_bytes=blocks * block_bytes, **{"layer_group": 2, **knobs})


@asynccontextmanager
async def running_pair(
    model: FakeModel,
    prefill: PrefillNodeConfig,
    decode: DecodeNodeConfig,
    *,
    prefill_gate: Gate | None = None,
    decode_gate: Gate | None = None,
    fabric: LocalFabric | None = None,
) -> AsyncIterator[Pair]:
    """Start both nodes and prove the path between them."""
    clock, fabric = ManualClock(), fabric or LocalFabric()

    def build_prefill(address: NodeAddress, config: NodeConfig) -> PrefillNode:
        assert isinstance(config, PrefillNodeConfig)
        runner = FakeRunner(model, config.engine, on_run=prefill_gate)
        return PrefillNode(Materials(address, runner, LocalTransport(fabric, address.node), NodeMetrics()), config, clock)

    def build_decode(address: NodeAddress, config: NodeConfig) -> DecodeNode:
        assert isinstance(config, DecodeNodeConfig)
        runner = FakeRunner(model, config.engine, on_run=decode_gate)
        return DecodeNode(Materials(address, runner, LocalTransport(fabric, address.node), NodeMetrics()), config, clock)

    async with AsyncExitStack() as stack:
        p, p_stubs = await stack.enter_async_context(_hosted("p", build_prefill, prefill_service.add_services, prefill))
        d, d_stubs = await stack.enter_async_context(_hosted("d", build_decode, decode_service.add_services, decode))
        sides = [await stubs.node.Describe(pb.DescribeRequest()) for stubs in (p_stubs, d_stubs)]
        router = MiniRouter(p_stubs, d_stubs, (sides[0], sides[1]))
        await router.introduce()
        collecting = asyncio.ensure_future(router.collect())
        try:
            yield Pair(p, d, router, clock)
        finally:
            collecting.cancel()
            for gate in (prefill_gate, decode_gate):
                if gate:
                    gate.open()


@asynccontextmanager
async def _hosted(name: str, build: Any, add_services: Any, config: NodeConfig) -> AsyncIterator[tuple[Any, Stubs]]:
    server, loading = new_server(), Loading[Any]("not built")
    port = server.add_insecure_port("127.0.0.1:0")
    node = NodeRef(NodeId(name), new_incarnation())
    address = NodeAddress(node, name, f"127.0.0.1:{port}", "")
    add_services(server, loading)
    add_node_service(server, address, loading)
    await server.start()
    hosted = build(address, config)
    async with hosted.running(), open_channel(address.grpc) as channel:
        loading.put(hosted)
        try:
            yield hosted, Stubs(channel)
        finally:
            await server.stop(None)
