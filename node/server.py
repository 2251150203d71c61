"""Listens: the gRPC server with its health service, and the Prometheus endpoint in a thread of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, start_http_server

from twostep.core.address_file import write_address_file
from twostep.core.errors import ConfigError
from twostep.core.host_port import join_host_port
from twostep.core.ids import NodeRef
from twostep.node.address import NodeAddress
from twostep.node.config import NodeConfig
from twostep.node.identity import advertised_host
from twostep.proto.rpc import new_server

READINESS = "twostep.node.v1.Node"
"""The name under which the health service tells readiness; the empty name tells that the process lives."""
STOP_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Listening:
    """A bound server: services are added, then `start` opens it to callers."""

    server: grpc.aio.Server
    health: Any
    address: NodeAddress

    async def start(self, config: NodeConfig) -> None:
        """Open for calls, not ready yet, and tell the address. Raises ConfigError when there is no place to tell it."""
        await self.tell_ready(False)
        await self.server.start()
        if config.address_file:
            write_address_file(config.address_file, self.address.as_json())

    async def tell_ready(self, is_ready: bool) -> None:
        statuses = health_pb2.HealthCheckResponse
        await self.health.set(READINESS, statuses.SERVING if is_ready else statuses.NOT_SERVING)


@asynccontextmanager
async def listening(config: NodeConfig, node: NodeRef, role: str, registry: CollectorRegistry) -> AsyncIterator[Listening]:
    """Bind both ports; on leaving, stop taking calls and close them. Raises ConfigError when a port is taken."""
    metrics_port, close_metrics = _serve_metrics(config, registry)
    server, health_service = new_server(), health.aio.HealthServicer()  # type: ignore[attr-defined]
    try:
        health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
        port = _bind(server, config)
        host = advertised_host(config)
        address = NodeAddress(node, role, join_host_port(host, port), join_host_port(host, metrics_port))
        yield Listening(server, health_service, address)
    finally:
        await server.stop(STOP_GRACE_S)
        await asyncio.to_thread(close_metrics)


def _bind(server: grpc.aio.Server, config: NodeConfig) -> int:
    address = join_host_port(config.host, config.port)
    try:
        return server.add_insecure_port(address)
    except RuntimeError as cause:
        raise ConfigError(f"port: cannot listen on {address}: is another program using it?") from cause


def _serve_metrics(config: NodeConfig, registry: CollectorRegistry) -> tuple[int, Callable[[], None]]:
    try:
        server, thread = start_http_server(config.metrics_port, config.host.strip("[]"), registry)
    except OSError as cause:
        raise ConfigError(f"metrics_port: cannot listen on {config.host}:{config.metrics_port}: {cause.strerror}") from cause

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, close
