"""Bytes that are nearly HTTP: whatever comes, the router answers or hangs up in time, and goes on serving."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twostep.tests.router.cluster import cluster
from twostep.tests.router.front.http.raw_http import chat_request, connection

pytestmark = pytest.mark.processes

CHUNKED = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n4\r\n{}  \r\n0\r\n\r\n"
REQUESTS = [
    chat_request("connection: close\r\n"),
    chat_request(stream=True),
    chat_request() + chat_request("connection: close\r\n"),
    CHUNKED,
    b"GET /v1/models/fake HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
]
TELLING = [b"\r\n", b"\r\n\r\n", b"\0", b"0\r\n\r\n", b"-1", b"chunked", b"content-length: 3\r\n", b": ", b"\xff", b" HTTP/1.1"]

edits = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 40), st.sampled_from(TELLING) | st.binary(max_size=20)), min_size=1, max_size=4
)


@st.composite
def nearly_requests(draw: st.DrawFn) -> bytes:
    request = draw(st.sampled_from(REQUESTS))
    for where, num_removed, put in draw(edits):
        place = round(where * len(request))
        request = request[:place] + put + request[place + num_removed :]
    return request


@pytest.mark.parametrize("num_examples", [60, pytest.param(2000, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_nearly_http_is_never_an_error_of_ours(tmp_path: Path, num_examples: int) -> None:
    with asyncio.Runner() as runner:
        context = cluster(tmp_path, client_send_s=0.2)
        running = runner.run(context.__aenter__())

        async def send(request: bytes) -> None:
            async with connection(running) as client, asyncio.timeout(60):
                await client.send(request)
                try:
                    status = await client.reader.readline()
                except ConnectionError:
                    return
                assert status.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")) or not status

        @settings(max_examples=num_examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(nearly_requests())
        def run(request: bytes) -> None:
            runner.run(send(request))

        try:
            run()
            assert runner.run(running.chat()).status_code == 200
        finally:
            runner.run(context.__aexit__(None, None, None))
