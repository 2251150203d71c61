"""Puts the router together and runs it: tokenizer, nodes, front doors, in that order."""

import asyncio
import socket
import time

from starlette.types import ASGIApp

from twostep.core.certificates import CertificateFiles, files_of
from twostep.core.errors import NodeUnavailable
from twostep.core.interpreter import keep_loaded
from twostep.core.otlp import exporting
from twostep.router.address import address_of
from twostep.router.admission.in_flight import Admission
from twostep.router.config import RouterConfig
from twostep.router.discovery.choose import choose_discovery
from twostep.router.front.generation import Generator
from twostep.router.front.grpc.api import ServingService
from twostep.router.front.grpc.door import grpc_door
from twostep.router.front.http.app import Pages, build_app
from twostep.router.front.http.body import BodyReader
from twostep.router.front.http.completions import Completions
from twostep.router.front.http.dialect import Chat, PlainCompletion
from twostep.router.front.http.door import listen, run_http
from twostep.router.front.http.json_endpoint import JsonEndpoint
from twostep.router.front.http.server import LAST_WORDS_S, new_http_server
from twostep.router.front.http.state_pages import OwnPages
from twostep.router.front.http.tokenization import Tokenization
from twostep.router.front.model import ServedModel
from twostep.router.front.readiness import Readiness
from twostep.router.front.waking import Waking
from twostep.router.metrics import Metrics
from twostep.router.nodes.awake import awake_clock
from twostep.router.nodes.pool import NodePool
from twostep.router.requests.dispatch import Dispatcher
from twostep.router.requests.tracing import Tracing
from twostep.router.text.templates.renderer import open_renderer
from twostep.router.text.tokenizer import load_tokenizer
from twostep.router.worker_group import SingleWorker, WorkerGroup


async def serve(config: RouterConfig, stop: asyncio.Event, group: WorkerGroup | None = None) -> None:
    """Serve until `stop` is set, then let the requests in flight end; alone unless in `group`. Raises ConfigError."""
    group = group or SingleWorker(config.address_file)
    discovery = choose_discovery(config)
    tokenizer = load_tokenizer(config.model)
    front = config.front_tls
    certificate = CertificateFiles(front.certificate, front.key) if front else None
    metrics = Metrics()
    metrics.starts.inc(group.num_starts)
    for name, files in (("front", certificate), ("internal", files_of(config.tls) if config.tls else None)):
        if files:
            metrics.certificate_end.labels(name).set_function(files.ends_at)
    admission = Admission(config.max_in_flight, metrics, time.monotonic)
    started = int(time.time())
    with (
        listen(config.host, config.port, reuse_port=group.is_shared) as listener,
        exporting(config.tracing, "twostep.router", config.router_id or socket.gethostname()) as spans,
    ):
        tracing = Tracing(spans, config.tracing.share) if config.tracing and spans else None
        async with (
            open_renderer(config.model, config.chat_template) as renderer,
            awake_clock() as clock,
            NodePool(config, discovery, clock=clock) as pool,
        ):
            readiness = Readiness(pool, config)
            model = ServedModel(_names(config), config.model, tokenizer, renderer, readiness.limits)
            dispatcher = Dispatcher(pool, config, metrics, tracing=tracing)
            waking = Waking(pool, readiness, metrics, wait_s=config.node_wait_s)
            generator = Generator(
                model, dispatcher, metrics, timeout_s=config.request_timeout_s, until_served=waking.until_served
            )
            posted = endpoints(model, generator, admission, metrics, config)
            pages = Pages(model, readiness, started=started)
            own = OwnPages(readiness, metrics, dispatcher.history)
            app = build_app(posted, pages, group.pages(own), config.cors_origins)
            service = ServingService(model, generator, admission, metrics, config, started=started)
            await group.until_needed(readiness, stop)
            async with (
                group.telling(own),
                grpc_door(config, service, readiness, certificate, reuse_port=group.is_shared) as door,
                asyncio.TaskGroup() as doors,
            ):
                keep_loaded()
                group.opened({"http": address_of(listener), "grpc": door.address})
                doors.create_task(run_http(new_http_server(app, config, metrics, certificate), listener, stop, admission))
                doors.create_task(door.serve(stop, admission, drain_s=config.drain_s + LAST_WORDS_S))
                doors.create_task(_end_late_requests(stop, admission, dispatcher, drain_s=config.drain_s))


async def _end_late_requests(stop: asyncio.Event, admission: Admission, dispatcher: Dispatcher, *, drain_s: float) -> None:
    """End what is still in flight when the time to drain is over, so that its clients hear of it."""
    await stop.wait()
    await admission.until_empty(timeout_s=drain_s)
    dispatcher.stop(NodeUnavailable("this router is stopping, its time to drain is over"))


def endpoints(
    model: ServedModel, generator: Generator, admission: Admission, metrics: Metrics, config: RouterConfig
) -> dict[str, ASGIApp]:
    """Return what answers each path that is posted to."""
    bodies = BodyReader(max_body_bytes=config.max_body_bytes, max_held_bytes=config.max_held_body_bytes)
    tokenization = Tokenization(model)
    return {
        "/v1/chat/completions": Completions(Chat(), model, generator, bodies, admission, metrics, config),
        "/v1/completions": Completions(PlainCompletion(), model, generator, bodies, admission, metrics, config),
        "/tokenize": JsonEndpoint(tokenization.tokenize, bodies, admission, metrics),
        "/detokenize": JsonEndpoint(tokenization.detokenize, bodies, admission, metrics),
    }


def _names(config: RouterConfig) -> list[str]:
    return list(dict.fromkeys([config.model_name, config.model]))
