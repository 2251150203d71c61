"""Mutual TLS: who belongs to the cluster may call and be called, nobody else, and renewed certificates count at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from twostep.core import certificates
from twostep.core.errors import NodeUnreachable, ServingError, Unauthorized
from twostep.proto import handoff_pb2_grpc, node_pb2_grpc, serving_pb2_grpc
from twostep.proto.rpc import new_server, open_channel, serving_errors
from twostep.proto.security import MutualTls, PlainText, Security, security_of
from twostep.tests.certificates import CLUSTER, YESTERDAY, Authority

pytestmark = pytest.mark.processes


class Healthy(health_pb2_grpc.HealthServicer):
    async def Check(self, request: object, context: object) -> health_pb2.HealthCheckResponse:  # noqa: N802
        return health_pb2.HealthCheckResponse(status=1)

    async def Watch(self, request: object, context: object) -> AsyncIterator[health_pb2.HealthCheckResponse]:  # noqa: N802
        for status in (1, 2):
            yield health_pb2.HealthCheckResponse(status=status)


@asynccontextmanager
async def serving(security: Security) -> AsyncIterator[str]:
    server = new_server(admit=security.admit)
    health_pb2_grpc.add_HealthServicer_to_server(Healthy(), server)
    address = f"127.0.0.1:{security.bind(server, '127.0.0.1:0')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


async def call(security: Security, address: str) -> int:
    """Return what a call answers. Raises ServingError."""
    async with security.open_channel(address) as channel:
        with serving_errors(address):
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    return int(reply.status)


async def test_two_of_a_cluster_speak_to_each_other(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    node, router = MutualTls(authority.issue("node").tls()), MutualTls(authority.issue("router").tls())
    async with serving(node) as address:
        assert await call(router, address) == 1
        async with router.open_channel(address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
            assert [reply.status async for reply in watch] == [1, 2]


@pytest.mark.parametrize("calls", [handoff_pb2_grpc, node_pb2_grpc, serving_pb2_grpc], ids=lambda calls: calls.__name__)
async def test_every_call_of_ours_can_be_made_with_a_certificate(tmp_path: Path, calls: ModuleType) -> None:
    stubs = [stub for name, stub in vars(calls).items() if name.endswith("Stub")]
    assert stubs
    async with MutualTls(Authority(tmp_path).issue("node").tls()).open_channel("127.0.0.1:1") as channel:
        for stub in stubs:
            stub(channel)


async def test_nobody_without_a_certificate_gets_a_word(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.issue("node")
    async with serving(MutualTls(identity.tls())) as address:
        with pytest.raises(NodeUnreachable):
            await call(PlainText(), address)
        trusting = grpc.ssl_channel_credentials(identity.ca.read_bytes())
        options = [("grpc.ssl_target_name_override", CLUSTER)]
        async with grpc.aio.secure_channel(address, trusting, options=options) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("wrong_side", ["caller", "called"])
@pytest.mark.parametrize("what", ["authority", "expired", "name"])
async def test_a_wrong_certificate_is_refused_on_both_sides(tmp_path: Path, what: str, wrong_side: str) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    good = ours.issue("good")
    match what:
        case "authority":
            # It trusts whom it should: only its own certificate is not to be trusted.
            bad = theirs.issue("bad")
            bad.ca.write_bytes(good.ca.read_bytes())
        case "expired":
            bad = ours.issue("bad", not_after=YESTERDAY)
        case _:
            bad = ours.issue("bad", "twostep.other")
    caller, called = (bad, good) if wrong_side == "caller" else (good, bad)
    async with serving(MutualTls(called.tls())) as address:
        with pytest.raises(ServingError) as raised:
            await call(MutualTls(caller.tls()), address)
    expected = Unauthorized if (what, wrong_side) == ("name", "caller") else NodeUnreachable
    assert type(raised.value) is expected


async def test_a_stream_is_refused_like_a_single_answer(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    stranger = MutualTls(authority.issue("other", "twostep.other").tls())
    async with serving(MutualTls(authority.issue("node").tls())) as address, stranger.open_channel(address) as channel:
        with pytest.raises(Unauthorized, match=r"a certificate for twostep\.prod is needed"), serving_errors(address):
            await health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=30).read()


async def test_renewed_certificates_count_without_a_restart_and_streams_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOOK_S", 0.0)
    old, new = Authority(tmp_path), Authority(tmp_path)
    node, router = MutualTls(old.issue("node").tls()), MutualTls(old.issue("router").tls())
    async with serving(node) as address, router.open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert (await watch.read()).status == 1
        new.issue("node")
        with pytest.raises(NodeUnreachable):
            await call(router, address)
        new.issue("router")
        assert (await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)).status == 1
        assert await call(router, address) == 1
        assert (await watch.read()).status == 2


async def test_without_a_configuration_it_is_plain_text() -> None:
    security = security_of(None)
    async with serving(security) as address, open_channel(address) as channel:
        assert (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)).status == 1
