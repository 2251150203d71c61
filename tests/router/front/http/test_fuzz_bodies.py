"""Whatever JSON is posted, the answer is a reply or an error of the client's in OpenAI's shape, never one of ours."""

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twostep.tests.router.cluster import events
from twostep.tests.router.front.http.app_in_memory import client_of_app
from twostep.tests.router.front.http.wire_bodies import PATHS
from twostep.tests.router.tiny_tokenizer import write_folder

FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=1500)


async def post(client: httpx.AsyncClient, path: str, body: bytes) -> None:
    async with asyncio.timeout(60):
        reply = await client.post(path, content=body)
    if reply.status_code == 200:
        check_answer(reply)
    else:
        assert 400 <= reply.status_code < 500, reply.text
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["type"], bool(error["code"])) == ("invalid_request_error", True)
        assert len(error["message"]) < 1500


def check_answer(reply: httpx.Response) -> None:
    if reply.headers["content-type"].startswith("text/event-stream"):
        assert events(reply.text)[-1] == "[DONE]"
        assert '"error":' not in reply.text
    else:
        assert reply.json()


def fuzz(path: str, model: str, bodies: st.SearchStrategy[bytes], times: settings) -> None:
    """Post generated bodies to one path of one application."""
    with asyncio.Runner() as runner, ExitStack() as opened:
        app = client_of_app(model)
        client = runner.run(app.__aenter__())
        opened.callback(lambda: runner.run(app.__aexit__(None, None, None)))

        @times
        @given(bodies)
        def run(body: bytes) -> None:
            runner.run(post(client, path, body))

        run()


def written(path: str) -> st.SearchStrategy[bytes]:
    return PATHS[path].map(lambda body: json.dumps(body).encode())


@pytest.mark.parametrize("path", PATHS)
def test_no_body_is_answered_with_an_error_of_ours(path: str) -> None:
    fuzz(path, "fake", written(path), FEW)


@pytest.mark.parametrize("path", PATHS)
def test_bytes_that_are_no_request_are_answered_as_such(path: str) -> None:
    fuzz(path, "fake", st.binary(max_size=200) | st.text().map(str.encode), FEW)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", PATHS)
def test_no_body_of_many_is_answered_with_an_error_of_ours_where_a_template_renders(path: str, tmp_path: Path) -> None:
    template = (Path(__file__).parents[2] / "text" / "templates" / "families" / "qwen3.jinja").read_text(encoding="utf-8")
    folder = write_folder(tmp_path / "fake", settings={"chat_template": template, "eos_token": "<|im_end|>"})
    fuzz(path, str(folder), written(path), MANY)
