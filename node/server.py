"""Listens: the gRPC server with its health service, and the page for probes and Prometheus."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from twostep.core.address_file import write_address_file
from twostep.core.errors import ConfigError
from twostep.core.host_port import join_host_port
from twostep.core.ids import NodeRef
from twostep.core.status_page import StatusPage, Vitals
from twostep.node.address import NodeAddress
from twostep.node.config import NodeConfig
from twostep.node.identity import advertised_host
from twostep.proto.rpc import new_server
from twostep.proto.security import Security

READINESS = "twostep.node.v1.Node"
"""The name under which the health service tells readiness; the empty name tells that the process lives."""
STOP_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Listening:
    """A bound server: services are added, then `start` opens it to callers."""

    server: grpc.aio.Server
    health: Any
    vitals: Vitals
    address: NodeAddress

    async def start(self, config: NodeConfig) -> None:
        """Open for calls, not ready yet, and tell the address. Raises ConfigError when there is no place to tell it."""
        await self.tell_ready("the model is being loaded")
        await self.server.start()
        if config.address_file:
            write_address_file(config.address_file, self.address.as_json())

    async def tell_ready(self, reason: str) -> None:
        """Tell why the node is not ready, or with an empty `reason` that it is."""
        self.vitals.reason = reason
        statuses = health_pb2.HealthCheckResponse
        await self.health.set(READINESS, statuses.NOT_SERVING if reason else statuses.SERVING)


@asynccontextmanager
async def listening(
    config: NodeConfig, node: NodeRef, role: str, registry: CollectorRegistry, security: Security
) -> AsyncIterator[Listening]:
    """Bind both ports; on leaving, stop taking calls and close them. Raises ConfigError when a port is taken."""
    vitals = Vitals(stuck_s=config.timers.stuck_s)
    beating = asyncio.create_task(vitals.keep_beating(), name="pulse")
    page = StatusPage(config.host.strip("[]"), config.metrics_port, vitals, registry)
    server, health_service = new_server(admit=security.admit), health.aio.HealthServicer()  # type: ignore[attr-defined]
    try:
        health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
        port = _bind(server, config, security)
        host = advertised_host(config)
        address = NodeAddress(node, role, join_host_port(host, port), join_host_port(host, page.port))
        yield Listening(server, health_service, vitals, address)
    finally:
        await server.stop(STOP_GRACE_S)
        await asyncio.to_thread(page.close)
        beating.cancel()
        await asyncio.wait({beating})


def _bind(server: grpc.aio.Server, config: NodeConfig, security: Security) -> int:
    address = join_host_port(config.host, config.port)
    try:
        return security.bind(server, address)
    except RuntimeError as cause:
        raise ConfigError(f"port: cannot listen on {address}: is another program using it?") from cause
