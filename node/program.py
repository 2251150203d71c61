"""How a node program runs: listen, load the model, serve, drain, exit."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import grpc.aio

from twostep.core.certificates import files_of
from twostep.core.errors import ConfigError, TransferFailed
from twostep.core.ids import NodeRef
from twostep.core.interpreter import keep_loaded, take_short_turns
from twostep.core.otlp import exporting
from twostep.core.spans import SpanSink
from twostep.core.threads import OwnThreads, Threads
from twostep.engine.config import EngineConfig
from twostep.engine.kv_cache import KVCache
from twostep.engine.runner import Runner
from twostep.engine.runners import build_runner
from twostep.kv_transfer.local_transport import LocalFabric, LocalTransport
from twostep.kv_transfer.transport import Transport
from twostep.kv_transfer.wires import WIRES
from twostep.node.address import NodeAddress
from twostep.node.calls import Channels
from twostep.node.config import NodeConfig
from twostep.node.control import NodeControl
from twostep.node.identity import advertised_host, new_identity
from twostep.node.interfaces import keep_to_interface_of
from twostep.node.kv_path import KVPath, find_kv_path, transport_along
from twostep.node.loading import Loading
from twostep.node.materials import Materials
from twostep.node.metrics import NodeMetrics
from twostep.node.readiness import Readiness
from twostep.node.server import Listening, listening
from twostep.node.service import add_node_service
from twostep.proto.security import security_of


class HostedNode(Protocol):
    """What a program hosts."""

    @property
    def readiness(self) -> Readiness: ...

    @property
    def control(self) -> NodeControl: ...

    def running(self) -> AbstractAsyncContextManager[None]: ...

    def tick(self) -> float:
        """Look at every timer; returns in how many seconds to look again."""

    async def drain(self) -> None:
        """Admit nothing more and wait until what runs has ended."""


log = logging.getLogger(__name__)
N = TypeVar("N", bound=HostedNode)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeProgram(Generic[N]):
    """What tells one kind of node from the other.

    `landing_bytes` of memory are written into by others. `add_services` adds all but the Node and health services.
    """

    role: str
    landing_bytes: int
    add_services: Callable[[grpc.aio.Server, Loading[N]], None]
    build: Callable[[Materials], N]


async def serve_node(program: NodeProgram[N], config: NodeConfig, stop: asyncio.Event, fabric: LocalFabric | None) -> None:
    """Serve until `stop`, then drain. Raises ConfigError, or EngineFault (in a group) when the engine dies.

    `fabric` joins the nodes of one process; without one only a real transport makes sense.
    """
    if config.transport == "local" and fabric is None:
        raise ConfigError("transport: local joins nodes of one process only: use nixl or ucx, or twostep up --transport local")
    take_short_turns()
    node = new_identity(config)
    with exporting(config.tracing, f"twostep.{program.role}_node", str(node)) as spans:
        await _serve_as(node, program, config, stop, fabric, spans)


async def _serve_as(
    node: NodeRef,
    program: NodeProgram[N],
    config: NodeConfig,
    stop: asyncio.Event,
    fabric: LocalFabric | None,
    spans: SpanSink | None,
) -> None:
    metrics, loading = NodeMetrics(), Loading[N]("the model is being loaded")
    security = security_of(config.tls)
    if config.tls:
        metrics.observe_value(
            "certificate_end_timestamp_seconds",
            "When the certificate that is shown to routers and peers ends.",
            files_of(config.tls).ends_at,
        )
    async with listening(config, node, program.role, metrics.registry, security) as server:
        program.add_services(server.server, loading)
        add_node_service(server.server, server.address, loading)
        await server.start(config)
        log.info("the node listens", extra={"node": str(node), "grpc": server.address.grpc, "metrics": server.address.metrics})

        def build() -> Runner:
            return build_runner(config.model, config.engine, landing_bytes=program.landing_bytes, tell=loading.tell)

        channels = Channels(security.open_channel)
        materials = await _unless_told(stop, _load(build, config, server.address, metrics, fabric, channels))
        if materials is not None:
            hosted = _built(program, replace(materials, spans=spans))
            keep_loaded()
            await host(hosted, server, loading, stop)


def _built(program: NodeProgram[N], materials: Materials) -> N:
    """Return the node. Raises ConfigError where the transport does not take all of its memory; it took some for a test."""
    try:
        return program.build(materials)
    except TransferFailed as cause:
        raise ConfigError(f"transport: {cause.message}: `twostep doctor` says what this machine may lack") from cause


async def _load(
    build: Callable[[], Runner],
    config: NodeConfig,
    address: NodeAddress,
    metrics: NodeMetrics,
    fabric: LocalFabric | None,
    channels: Channels,
) -> Materials:
    # The kernels' threads are started by whoever loads them, and compute behind the others then as the engine's does.
    loading = OwnThreads(behind={"model"}, own_cores=config.engine.own_cores)
    runner = await asyncio.wrap_future(loading.call("model", build))
    transport, path = await asyncio.wrap_future(
        loading.call("transport", lambda: _transport(config, address.node, fabric, runner.kv))
    )
    if path:
        metrics.observe("kv_path", "1 for the way that KV takes, found out at the start.", "way", lambda: {path.way.value: 1.0})
    return Materials(address, runner, transport, metrics, channels, _threads(runner, config.engine), path)


def _threads(runner: Runner, engine: EngineConfig) -> Threads:
    """Let control come before what computes on its cores. What only feeds a device must never wait."""
    computes_here = runner.kv.region().kind == "DRAM"
    return OwnThreads(behind={"engine"} if computes_here else (), own_cores=engine.own_cores)


def _transport(config: NodeConfig, node: NodeRef, fabric: LocalFabric | None, kv: KVCache) -> tuple[Transport, KVPath | None]:
    if fabric is not None and config.transport == "local":
        return LocalTransport(fabric, node), None
    keep_to_interface_of(advertised_host(config))
    open_wire = WIRES[config.transport]
    path = find_kv_path(kv, open_wire)
    told = {"bytes_per_s": round(path.bytes_per_s), "over": path.way.value}
    if path.is_staged:
        log.warning("KV goes through host memory", extra={**told, "reason": path.why_staged})
    else:
        log.info("the transport moves bytes", extra=told)
    return transport_along(path, open_wire(node), kv), path


async def host(node: N, server: Listening, loading: Loading[N], stop: asyncio.Event) -> None:
    """Serve with a node that is loaded until `stop` is set, then drain it."""
    async with node.running():
        loading.put(node)
        log.info("the node serves", extra={"blocks": node.control.describe().num_blocks})
        while not stop.is_set():
            pause_s = node.tick()
            await server.tell_ready(node.readiness.reason)
            await _unless_told(stop, asyncio.sleep(pause_s))
        await server.tell_ready("the node drains")
        log.info("the node drains")
        await _drain(node)
        log.info("the node has stopped")


async def _drain(node: HostedNode) -> None:
    """Drain while the timers go on: leases, deadlines and progress messages are what ends the last requests."""
    draining = asyncio.ensure_future(node.drain())
    while not draining.done():
        await asyncio.wait({draining}, timeout=node.tick())
    await draining


async def _unless_told(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what `work` returns, or None as soon as `stop` is set."""
    task, told = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        told.cancel()
