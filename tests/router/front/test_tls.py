"""TLS at both front doors: what clients see, also after the certificate was renewed."""

import asyncio
import ssl
from pathlib import Path

import grpc.aio
import httpx
import pytest

from twostep.core import certificates
from twostep.core.errors import ConfigError
from twostep.proto import serving_pb2 as pb
from twostep.proto.serving_pb2_grpc import ServingStub
from twostep.router.config import RouterConfig
from twostep.router.serve import serve
from twostep.tests.certificates import Authority, Identity
from twostep.tests.router.cluster import chat_body, cluster, until

pytestmark = pytest.mark.processes


def trusting(identity: Identity) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(identity.ca))


async def test_both_doors_speak_tls_and_nothing_else(tmp_path: Path) -> None:
    identity = Authority(tmp_path).issue("front", "localhost", "127.0.0.1")
    tls = {"certificate": identity.certificate, "key": identity.key}
    async with cluster(tmp_path, front_tls=tls, is_ready=False) as running:
        url = running.url.replace("http://", "https://")
        async with httpx.AsyncClient(base_url=url, verify=trusting(identity), trust_env=False) as https:

            async def is_ready() -> bool:
                return (await https.get("/ready")).status_code == 200

            await until(is_ready)
            async with https.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as reply:
                assert reply.status_code == 200
                assert "[DONE]" in "".join([line async for line in reply.aiter_lines()])
        credentials = grpc.ssl_channel_credentials(identity.ca.read_bytes())
        async with grpc.aio.secure_channel(running.grpc, credentials) as channel:
            request = pb.GenerateRequest(text="hi", stop=pb.StopRules(max_tokens=100))
            replies = [reply async for reply in ServingStub(channel).Generate(request, timeout=10)]
            assert "".join(reply.delta.text for reply in replies) == "Hello, world"
        with pytest.raises(httpx.TransportError):
            await running.http.get("/ready")
        async with grpc.aio.insecure_channel(running.grpc) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await ServingStub(channel).Generate(pb.GenerateRequest(text="hi"), timeout=2).read()


async def test_a_renewed_certificate_is_shown_to_the_next_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "LOOK_S", 0.0)
    old, new = Authority(tmp_path), Authority(tmp_path)
    identity = old.issue("front", "127.0.0.1")
    tls = {"certificate": identity.certificate, "key": identity.key}
    async with cluster(tmp_path, front_tls=tls, is_ready=False) as running:
        url = running.url.replace("http://", "https://")
        new.issue("front", "127.0.0.1")

        async def is_renewed() -> bool:
            async with httpx.AsyncClient(base_url=url, verify=trusting(identity), trust_env=False) as https:
                try:
                    return (await https.get("/health")).status_code == 200
                except httpx.ConnectError:
                    return False

        await until(is_renewed)
        async with grpc.aio.secure_channel(running.grpc, grpc.ssl_channel_credentials(identity.ca.read_bytes())) as channel:
            await (
                ServingStub(channel).Generate(pb.GenerateRequest(text="hi"), timeout=5, wait_for_ready=True).initial_metadata()
            )


async def test_certificates_that_are_no_use_are_refused_at_the_start(tmp_path: Path) -> None:
    identity = Authority(tmp_path).issue("front", "localhost")
    identity.key.write_text("")
    config = RouterConfig(
        decode=("d:1",),
        prefill=("p:1",),
        front_tls={"certificate": identity.certificate, "key": identity.key},  # type: ignore[arg-type]
    )
    with pytest.raises(ConfigError, match=r"tls: .*not a PEM certificate with its key"):
        await serve(config, asyncio.Event())
