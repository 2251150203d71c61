"""Puts the autoscaler together and runs it: the API server, the page for probes and people, the election, the loop."""

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial

import httpx

from twostep.autoscaler.apply import Apply
from twostep.autoscaler.config import AutoscalerConfig
from twostep.autoscaler.election import Election
from twostep.autoscaler.kubernetes_api import Api, open_api
from twostep.autoscaler.look import Look
from twostep.autoscaler.loop import Autoscaler
from twostep.autoscaler.metrics import AutoscalerMetrics
from twostep.autoscaler.scrape import Scraper
from twostep.core.address_file import write_address_file
from twostep.core.host_port import join_host_port
from twostep.core.status_page import StatusPage, Vitals
from twostep.kube.errors import ApiError

SCRAPE_S = 5.0
STUCK_S = 60.0
LAST_WORD_S = 5.0


async def serve(config: AutoscalerConfig, stop: asyncio.Event) -> None:
    """Scale both pools until `stop` is set. Raises ConfigError."""
    async with open_api(config.kubernetes) as api:
        await serve_with(api, config, stop)


async def serve_with(api: Api, config: AutoscalerConfig, stop: asyncio.Event) -> None:
    """The same, with an API server that is given."""
    vitals, metrics = Vitals(stuck_s=STUCK_S), AutoscalerMetrics()
    me = f"{config.identity or socket.gethostname()}-{secrets.token_hex(4)}"
    election = Election(api, me, config.kubernetes.lease_s, time.monotonic, utc_now)
    async with httpx.AsyncClient(timeout=SCRAPE_S, trust_env=False, verify=False) as http:
        look = Look(
            api,
            Scraper(http),
            Scraper(http, scheme="https" if config.routers.is_https else "http"),
            config,
            time.monotonic,
            utc_now,
        )
        autoscaler = Autoscaler(look, Apply(api, config, utc_now), election, config, metrics, vitals)
        async with status_page(config, autoscaler, metrics, vitals), asyncio.TaskGroup() as tasks:
            work = [tasks.create_task(one) for one in (autoscaler.keep_electing(), autoscaler.keep_scaling())]
            await stop.wait()
            for task in work:
                task.cancel()
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                await election.give_up()


@asynccontextmanager
async def status_page(
    config: AutoscalerConfig, autoscaler: Autoscaler, metrics: AutoscalerMetrics, vitals: Vitals
) -> AsyncIterator[None]:
    """Serve /health, /ready, /metrics and /plan. Raises ConfigError when the port is taken."""
    pages: dict[str, Callable[[], str]] = {"/plan": partial(plan_page, autoscaler)}
    page = StatusPage(config.host.strip("[]"), config.port, vitals, metrics.registry, pages)
    beating = asyncio.create_task(vitals.keep_beating(), name="pulse")
    try:
        if config.address_file:
            write_address_file(config.address_file, {"http": join_host_port(config.host, page.port)})
        yield
    finally:
        beating.cancel()
        await asyncio.to_thread(page.close)
        await asyncio.wait({beating})


def plan_page(autoscaler: Autoscaler) -> str:
    return json.dumps(autoscaler.told.as_json(), indent=1) + "\n"


def utc_now() -> datetime:
    return datetime.now(UTC)
