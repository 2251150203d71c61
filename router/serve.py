"""Puts the router together and runs it: tokenizer, nodes, HTTP server, in that order."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.types import ASGIApp

from twostep.core.errors import ConfigError
from twostep.router.admission import Admission
from twostep.router.app import Pages, build_app
from twostep.router.body import BodyReader
from twostep.router.completions import Completions
from twostep.router.config import RouterConfig, check
from twostep.router.dispatch import Dispatcher
from twostep.router.generation import Generator
from twostep.router.http_server import HttpServer, new_http_server
from twostep.router.metrics import Metrics
from twostep.router.model import ServedModel
from twostep.router.node_pool import NodePool
from twostep.router.openai.dialect import Chat, PlainCompletion
from twostep.router.readiness import Readiness
from twostep.router.templates.renderer import open_renderer
from twostep.router.tokenizer import load_tokenizer

log = logging.getLogger(__name__)


async def serve(config: RouterConfig, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then let the requests in flight end. Raises ConfigError."""
    check(config)
    tokenizer = load_tokenizer(config.model)
    metrics = Metrics()
    admission = Admission(config.max_in_flight, metrics)
    with listen(config.host, config.port) as listener:
        async with open_renderer(config.model, config.chat_template) as renderer, NodePool(config) as pool:
            readiness = Readiness(pool, allow_decode_alone=config.allow_decode_alone)
            model = ServedModel(_names(config), config.model, tokenizer, renderer, readiness.limits)
            dispatcher = Dispatcher(pool, config, metrics)
            generator = Generator(model, dispatcher, metrics, timeout_s=config.request_timeout_s)
            bodies = BodyReader(max_body_bytes=config.max_body_bytes, max_held_bytes=config.max_held_body_bytes)
            endpoints: dict[str, ASGIApp] = {
                "/v1/chat/completions": Completions(Chat(), model, generator, bodies, admission, metrics, config),
                "/v1/completions": Completions(PlainCompletion(), model, generator, bodies, admission, metrics, config),
            }
            app = build_app(endpoints, Pages(model, readiness, metrics, started=int(time.time())), config.cors_origins)
            _tell_address(listener, config.address_file)
            await _run_http(new_http_server(app, config, metrics), listener, stop, admission)


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a bound socket. Raises ConfigError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY only on sockets that say they are TCP.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as cause:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {cause.strerror or cause}; choose another host or port"
            ) from cause
        listener.setblocking(False)
        yield listener


async def _run_http(server: HttpServer, listener: socket.socket, stop: asyncio.Event, admission: Admission) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        admission.is_closed = True
        server.should_exit = True
        await serving
    finally:
        stopping.cancel()
        serving.cancel()


def _tell_address(listener: socket.socket, path: Path | None) -> None:
    host, port = listener.getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    log.info("router listens", extra={"http": address})
    if path is None:
        return
    # Written beside and renamed, so that nobody reads half of it.
    draft = path.with_name(f"{path.name}.tmp")
    try:
        draft.write_text(json.dumps({"http": address}), encoding="utf-8")
        draft.replace(path)
    except OSError as cause:
        raise ConfigError(f"address_file: {path} cannot be written: {cause.strerror or cause}") from cause


def _names(config: RouterConfig) -> list[str]:
    return list(dict.fromkeys([config.model_name, config.model]))
