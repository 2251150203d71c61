"""The HTTP application without sockets or nodes: a dispatch that answers at once with words of its own."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from twostep.core.request import FinishReason, Request
from twostep.router.admission.in_flight import Admission
from twostep.router.bill import Intake, Timeline, make_bill
from twostep.router.config import RouterConfig
from twostep.router.discovery.static import StaticDiscovery
from twostep.router.front.generation import Generator
from twostep.router.front.http.app import Pages, build_app
from twostep.router.front.http.state_pages import OwnPages
from twostep.router.front.model import ServedModel
from twostep.router.front.openai.accept import ModelLimits
from twostep.router.front.readiness import Readiness
from twostep.router.metrics import Metrics
from twostep.router.nodes.pool import NodePool
from twostep.router.placement.choose import Placement
from twostep.router.requests.delivery import TokenSink
from twostep.router.requests.history import History
from twostep.router.requests.run import Outcome
from twostep.router.serve import endpoints
from twostep.router.text.templates.renderer import open_renderer
from twostep.router.text.tokenizer import load_tokenizer
from twostep.tests.router.placement.test_choose import node

LIMITS = ModelLimits(max_model_tokens=4096, max_prompt_tokens=4000, vocab_size=300)


class AtOnce:
    """A Dispatch without nodes."""

    async def run(self, request: Request, sink: TokenSink, *, intake: Intake, timeout_s: float) -> Outcome:
        words = b"Hello, world"[: request.stop.max_tokens]
        sink.put(words)
        await sink.settle()
        now = asyncio.get_running_loop().time()
        times = Timeline(intake, first_token=now, last_token=now)
        bill = make_bill(times, None, None, num_tokens=len(words), cached=0, attempts=1, prefill_node=None, decode_node="d")
        return Outcome(FinishReason.LENGTH, 0, bill, Placement(node("d"), None))


async def at_once() -> None:
    pass


@asynccontextmanager
async def client_of_app(model: str = "fake") -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the application that serves `model`. What the application raises is raised to the test."""
    config = RouterConfig(model=model)
    metrics = Metrics()
    async with open_renderer(model, None) as renderer:
        served = ServedModel([config.model_name], model, load_tokenizer(model), renderer, lambda: LIMITS)
        generator = Generator(served, AtOnce(), metrics, timeout_s=60, until_served=at_once)
        admission = Admission(config.max_in_flight, metrics, time.monotonic)
        readiness = Readiness(NodePool(config, StaticDiscovery((), ())), config)
        own = OwnPages(readiness, metrics, History())
        app = build_app(endpoints(served, generator, admission, metrics, config), Pages(served, readiness, started=0), own)
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
            yield client
