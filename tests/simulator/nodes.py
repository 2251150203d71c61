"""The programs of a simulated cluster: the real nodes and the real router, each in a process of its own."""

import asyncio
from collections.abc import Callable
from typing import Any

from twostep.core.errors import EngineFault
from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.core.status_page import Vitals
from twostep.decode_node import service as decode_service
from twostep.decode_node.config import DecodeNodeConfig
from twostep.decode_node.node import DecodeNode
from twostep.node.address import NodeAddress
from twostep.node.calls import Channels
from twostep.node.config import NodeConfig
from twostep.node.loading import Loading
from twostep.node.materials import Materials
from twostep.node.metrics import NodeMetrics
from twostep.node.program import host
from twostep.node.server import STOP_GRACE_S, Listening
from twostep.node.service import add_node_service
from twostep.prefill_node import service as prefill_service
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.prefill_node.node import PrefillNode
from twostep.router.config import RouterConfig
from twostep.router.discovery.static import StaticDiscovery
from twostep.router.metrics import Metrics
from twostep.router.nodes.awake import awake_clock
from twostep.router.nodes.client import NodeClient
from twostep.router.nodes.pool import NodePool
from twostep.router.requests.dispatch import Dispatcher
from twostep.tests.simulator.model import SlowRunner
from twostep.tests.simulator.network import Network, SimServer
from twostep.tests.simulator.process import Process
from twostep.tests.simulator.transport import Fabric, SimTransport


class Health:
    """Stands in for gRPC's health service."""

    async def set(self, service: str, status: Any) -> None:
        """Nobody asks."""


class NodeLife:
    """One life of a node program."""

    def __init__(
        self,
        process: Process,
        network: Network,
        fabric: Fabric,
        config: NodeConfig,
        on_built: Callable[["NodeLife"], None],
    ) -> None:
        self.process = process
        self.config = config
        self.ref = NodeRef(NodeId(process.name), Incarnation(process.chance.getrandbits(63)))
        self.server = SimServer(network, process)
        self.node: Any = None
        self.stop: asyncio.Event | None = None
        self.has_failed = False
        self._network = network
        self._fabric = fabric
        self._on_built = on_built
        self.main = process.start(self._run())

    @property
    def role(self) -> str:
        return "prefill" if isinstance(self.config, PrefillNodeConfig) else "decode"

    @property
    def is_up(self) -> bool:
        return not self.process.is_dead and not self.main.done()

    def tell_to_stop(self) -> None:
        """As SIGTERM does."""
        if self.stop:
            self.process.after(1e-4, self.stop.set)

    async def _run(self) -> None:
        self.stop = asyncio.Event()
        address, loading = NodeAddress(self.ref, self.role, self.process.address, ""), Loading[Any]("the model is being loaded")
        services = prefill_service if self.role == "prefill" else decode_service
        services.add_services(self.server, loading)  # type: ignore[attr-defined]
        add_node_service(self.server, address, loading)  # type: ignore[arg-type]
        self.server.open(self.process.address)
        try:
            self.node = self._build(address)
            self._on_built(self)
            listening = Listening(self.server, Health(), Vitals(stuck_s=self.config.timers.stuck_s), address)  # type: ignore[arg-type]
            await host(self.node, listening, loading, self.stop)
        except* EngineFault:
            self.has_failed = True
        finally:
            await self._end_calls()
        self.process.after(0.1, self._exit)

    async def _end_calls(self) -> None:
        """As grpc.aio's server does when it stops."""
        await self.server.stop(STOP_GRACE_S)

    def _exit(self) -> None:
        """The process ends by itself: whatever task is left now would have been left behind."""
        left = [task.get_name() for task in self.process.loop.tasks if not task.done()]
        if left:
            self.process.world.violate("no task left over", f"{self.process} exits with {left}")
        self.process.kill()
        self._network.die(self.process)

    def _build(self, address: NodeAddress) -> Any:
        process, transport = self.process, SimTransport(self._fabric, self.process, self.ref)
        channels = Channels(lambda to: self._network.channel(process, to))  # type: ignore[arg-type, return-value]
        materials = Materials(address, SlowRunner(self.config.engine), transport, NodeMetrics(), channels, process.threads)
        if isinstance(self.config, PrefillNodeConfig):
            return PrefillNode(materials, self.config, process.clock)
        assert isinstance(self.config, DecodeNodeConfig)
        return DecodeNode(materials, self.config, process.clock)


class RouterLife:
    """One life of a router, from its dispatcher downwards."""

    def __init__(self, process: Process, network: Network, config: RouterConfig) -> None:
        self.process = process
        self.config = config
        self.pool: NodePool | None = None
        self.dispatcher: Dispatcher | None = None
        self.stop: asyncio.Event | None = None
        self._network = network
        self.main = process.start(self._run())

    @property
    def is_up(self) -> bool:
        return not self.process.is_dead and not self.main.done()

    def tell_to_stop(self) -> None:
        if self.stop:
            self.process.after(1e-4, self.stop.set)

    async def _run(self) -> None:
        self.stop = asyncio.Event()

        def new_client(address: str, router: Any) -> NodeClient:
            return NodeClient(address, router, lambda to: self._network.channel(self.process, to))  # type: ignore[arg-type, return-value]

        discovery = StaticDiscovery(self.config.prefill, self.config.decode)
        async with (
            awake_clock(self.process.clock) as clock,
            NodePool(self.config, discovery, clock=clock, new_client=new_client) as pool,
        ):
            self.pool, self.dispatcher = pool, Dispatcher(pool, self.config, Metrics(), self.process.clock)
            await self.stop.wait()
        self.process.after(0.1, self._exit)

    def _exit(self) -> None:
        left = [task.get_name() for task in self.process.loop.tasks if not task.done()]
        if left:
            self.process.world.violate("no task left over", f"{self.process} exits with {left}")
        self.process.kill()
        self._network.die(self.process)
