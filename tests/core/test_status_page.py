"""What probes see: alive while the event loop turns, ready when the node says so, and metrics beside it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from twostep.core.errors import ConfigError
from twostep.core.status_page import StatusPage, Vitals

pytestmark = pytest.mark.processes


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def page(vitals: Vitals) -> Iterator[httpx.Client]:
    registry = CollectorRegistry()
    Gauge("twostep_things", "Things.", registry=registry).set(3)
    shown = StatusPage("127.0.0.1", 0, vitals, registry)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{shown.port}", trust_env=False) as client:
            yield client
    finally:
        shown.close()


def said(client: httpx.Client, path: str) -> tuple[int, str]:
    reply = client.get(path)
    return reply.status_code, reply.text


def test_a_node_is_ready_when_it_says_so() -> None:
    vitals = Vitals(stuck_s=5, clock=Clock())
    with page(vitals) as client:
        vitals.reason = "the model is being loaded"
        assert said(client, "/ready") == (503, "the model is being loaded\n")
        assert said(client, "/health") == (200, "ok\n")
        vitals.reason = ""
        assert said(client, "/ready") == (200, "ok\n")


async def test_it_is_alive_while_its_event_loop_turns_and_neither_alive_nor_ready_when_it_is_stuck() -> None:
    clock = Clock()
    vitals = Vitals(stuck_s=5, clock=clock)
    vitals.reason = ""
    with page(vitals) as client:
        clock.now = 7
        assert said(client, "/health") == (503, "the event loop has not turned for 7 s\n")
        assert said(client, "/ready")[0] == 503
        beating = asyncio.create_task(vitals.keep_beating())
        await asyncio.sleep(0)
        assert said(client, "/health") == said(client, "/ready") == (200, "ok\n")
        beating.cancel()


def test_metrics_are_beside_it_and_nothing_else_is() -> None:
    with page(Vitals(stuck_s=5)) as client:
        assert "twostep_things 3.0" in client.get("/metrics").text
        assert said(client, "/")[0] == 404


def test_a_port_that_is_taken_is_named() -> None:
    vitals = Vitals(stuck_s=5)
    with (
        page(vitals) as client,
        pytest.raises(ConfigError, match=f"metrics_port: cannot listen on 127.0.0.1:{client.base_url.port}"),
    ):
        StatusPage("127.0.0.1", client.base_url.port or 0, vitals, CollectorRegistry())
