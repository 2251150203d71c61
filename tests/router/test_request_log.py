"""What the router logs of requests: an id in every line, and never their words."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from twostep.core.errors import NodeUnavailable, RequestFault
from twostep.core.logging import JsonFormatter
from twostep.proto import node_pb2
from twostep.proto import serving_pb2 as pb
from twostep.proto.serving_pb2_grpc import ServingStub
from twostep.tests.router.cluster import Cluster, cluster

pytestmark = pytest.mark.processes

SECRET = "xyzzy"


class Lines(logging.Handler):
    """Keeps every line of our own, as JSON."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonFormatter("router"))
        self.raw: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("twostep"):
            self.raw.append(self.format(record))

    @property
    def parsed(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.raw]

    def ends(self) -> list[dict[str, Any]]:
        return [line for line in self.parsed if line["message"] == "request ended"]


@contextmanager
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    lines, root = Lines(), logging.getLogger()
    with caplog.at_level("DEBUG"):
        root.addHandler(lines)
        try:
            yield lines
        finally:
            root.removeHandler(lines)


async def ask_everywhere(running: Cluster) -> None:
    messages = [{"role": "user", "content": SECRET}]
    await running.chat(messages=messages, from_the_future=1)
    await running.chat(messages=[{"role": SECRET, "content": SECRET}])
    for body in ({"prompt": [SECRET, SECRET]}, {"prompt": SECRET, "stream": True, "stop": SECRET}, {"prompt": {SECRET: 1}}):
        await running.http.post("/v1/completions", json={"max_tokens": 100, **body})
    await running.http.post("/tokenize", json={"prompt": SECRET})
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        stub: Any = ServingStub(channel)  # type: ignore[no-untyped-call]
        [reply async for reply in stub.Generate(pb.GenerateRequest(text=SECRET))]


async def test_every_line_about_a_request_has_its_id_and_none_has_its_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with logged(caplog) as lines:
        async with cluster(tmp_path) as running:
            await ask_everywhere(running)
    assert SECRET not in "\n".join(lines.raw)
    assert [end["outcome"] for end in lines.ends()] == [
        *("length", "invalid_request"),
        *("length", "length", "invalid_request"),
        "ok",
        "length",
    ]
    assert len({end["request"] for end in lines.ends()}) == 7
    [unknown] = [line for line in lines.parsed if line["message"] == "unknown fields ignored"]
    assert unknown["request"] == lines.ends()[0]["request"]


async def test_a_new_attempt_is_logged_under_the_requests_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with logged(caplog) as lines:
        async with cluster(tmp_path) as running:

            def fail_once(request: node_pb2.GenerateRequest, attempt: int) -> None:
                error = NodeUnavailable("gone") if attempt == 1 else RequestFault("NaN")
                running.d.fail(request.id, attempt, error)

            running.d.answer = fail_once  # type: ignore[method-assign]
            await running.http.post("/v1/completions", json={"prompt": ["a"]}, headers={"x-request-id": "mine"})
    [attempt] = [line for line in lines.parsed if line["message"] == "new attempt"]
    [end] = lines.ends()
    assert attempt["request"] == end["request"]
    assert (end["client_request"], end["outcome"], end["door"]) == ("mine", "request_fault", "/v1/completions")


async def test_a_batchs_lines_name_the_choice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with logged(caplog) as lines:
        async with cluster(tmp_path) as running:

            def fail_once(request: node_pb2.GenerateRequest, attempt: int) -> None:
                if attempt == 1 and request.prompt[0] == ord("b"):
                    running.d.fail(request.id, attempt, NodeUnavailable("gone"))
                else:
                    running.d.emit(request.id, attempt, b"x")
                    running.d.finish(request.id, attempt, num_tokens=1)

            running.d.answer = fail_once  # type: ignore[method-assign]
            await running.http.post("/v1/completions", json={"prompt": ["a", "b"]})
    [attempt] = [line for line in lines.parsed if line["message"] == "new attempt"]
    [end] = lines.ends()
    assert attempt["request"] == f"{end['request']}-1"
    assert (end["prompt_tokens"], end["completion_tokens"]) == (2, 2)
