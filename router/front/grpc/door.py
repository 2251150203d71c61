"""Opens and closes the gRPC front door: its port, health and reflection, and what is let finish at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from twostep.core.certificates import CertificateFiles
from twostep.core.errors import ConfigError
from twostep.core.host_port import join_host_port
from twostep.proto.rpc import new_server
from twostep.proto.security import server_credentials
from twostep.proto.serving_pb2_grpc import add_ServingServicer_to_server
from twostep.router.admission.in_flight import Admission
from twostep.router.config import RouterConfig
from twostep.router.front.grpc.api import SERVICE, ServingService
from twostep.router.front.readiness import Readiness

HEALTH_S = 0.5
"""How often readiness is told to those who watch it."""
CLOSE_S = 1.0
"""How long calls that generate nothing, such as a watch of the health, may go on at the end."""


class GrpcDoor:
    """A server that takes calls at `address`."""

    def __init__(self, server: grpc.aio.Server, health_service: Any, readiness: Readiness, address: str) -> None:
        self._server = server
        self._health = health_service
        self._readiness = readiness
        self.address = address

    async def open(self) -> None:
        await self._tell_health()
        await self._server.start()

    async def serve(self, stop: asyncio.Event, admission: Admission, *, drain_s: float) -> None:
        """Serve until `stop` is set, then let the requests in flight end, for `drain_s` seconds at most."""
        watching = asyncio.create_task(self._keep_telling_health())
        try:
            await stop.wait()
        finally:
            watching.cancel()
        admission.is_closed = True
        await self._health.enter_graceful_shutdown()
        await admission.until_empty(timeout_s=drain_s)
        await self._server.stop(CLOSE_S)

    async def _keep_telling_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_S)
            await self._tell_health()

    async def _tell_health(self) -> None:
        """Tell readiness under the service's name; the empty name only tells that the process lives, as at the nodes."""
        status = health_pb2.HealthCheckResponse
        await self._health.set(SERVICE, status.SERVING if self._readiness.is_ready else status.NOT_SERVING)


@asynccontextmanager
async def grpc_door(
    config: RouterConfig,
    service: ServingService,
    readiness: Readiness,
    certificate: CertificateFiles | None,
    *,
    reuse_port: bool = False,
) -> AsyncIterator[GrpcDoor]:
    """Open the door for the block, with TLS where there is a certificate. Raises ConfigError when the address cannot be had.

    With `reuse_port` other processes may serve at the same port.
    """
    server = new_server(max_receive_bytes=config.max_body_bytes, reuse_port=reuse_port)
    health_service = health.aio.HealthServicer()  # type: ignore[attr-defined]
    add_ServingServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        port = _bind(server, join_host_port(config.host, config.grpc_port_or_next), certificate)
        door = GrpcDoor(server, health_service, readiness, join_host_port(config.host, port))
        await door.open()
        yield door
    finally:
        await server.stop(None)


def _bind(server: grpc.aio.Server, address: str, certificate: CertificateFiles | None) -> int:
    try:
        if certificate is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, server_credentials(certificate, wants_certificate=False))
    except RuntimeError as cause:
        raise ConfigError(f"grpc_port: cannot listen on {address}: is another program using it?") from cause
