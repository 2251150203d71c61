"""Web pages of other origins may read the replies only where the configuration names them."""

from pathlib import Path

import pytest

from twostep.tests.router.cluster import chat_body, cluster

pytestmark = pytest.mark.processes

PAGE = {"origin": "https://chat.example.org"}
PREFLIGHT = {**PAGE, "access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
PATH = "/v1/chat/completions"


async def test_no_page_may_read_anything_unless_configured(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        reply = await running.http.post(PATH, json=chat_body(), headers=PAGE)
        preflight = await running.http.options(PATH, headers=PREFLIGHT)
        assert (reply.status_code, preflight.status_code) == (200, 405)
        for headers in (reply.headers, preflight.headers):
            assert not [name for name in headers if name.startswith("access-control-")]


async def test_pages_of_a_named_origin_may_read_replies_errors_and_streams(tmp_path: Path) -> None:
    async with cluster(tmp_path, cors_origins=(PAGE["origin"],)) as running:
        preflight = await running.http.options(PATH, headers=PREFLIGHT)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == PAGE["origin"]
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        for body, status in ((chat_body(), 200), (chat_body(stream=True), 200), (chat_body(n=2), 400)):
            reply = await running.http.post(PATH, json=body, headers=PAGE)
            assert reply.status_code == status
            assert reply.headers["access-control-allow-origin"] == PAGE["origin"]
            assert "x-request-id" in reply.headers["access-control-expose-headers"]
        other = await running.http.post(PATH, json=chat_body(), headers={"origin": "https://elsewhere.example.org"})
        assert "access-control-allow-origin" not in other.headers


async def test_every_page_may_read_where_the_star_is_configured(tmp_path: Path) -> None:
    async with cluster(tmp_path, cors_origins=("*",)) as running:
        assert (await running.http.get("/health", headers=PAGE)).headers["access-control-allow-origin"] == "*"
