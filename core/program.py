"""How each program starts and stops: arguments, configuration, logging, signals, exit code."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from twostep.core.config import load
from twostep.core.errors import ConfigError
from twostep.core.logging import set_up_logging

C = TypeVar("C")


def run_program(
    name: str,
    description: str,
    config_class: type[C],
    serve: Callable[[C, asyncio.Event], Awaitable[None]],
    argv: Sequence[str] | None = None,
) -> int:
    """Run `serve(config, stop)` until it returns; SIGTERM and SIGINT set `stop`. Returns the process's exit code.

    A ConfigError, from reading the configuration or from `serve`, ends the program with code 2 and one line on stderr.
    """
    try:
        arguments = _parser(name, description).parse_args(argv)
        config = load(config_class, arguments.config, arguments.set)
        set_up_logging(name, log_format=arguments.log_format, level=arguments.log_level)
        asyncio.run(_serve_until_signal(config, serve))
    except ConfigError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return ConfigError.exit_code
    return 0


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with this program's configuration")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key, such as engine.dtype=float32; may be repeated",
    )
    parser.add_argument("--log-format", choices=["json", "text"], default="json")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    return parser


async def _serve_until_signal(config: C, serve: Callable[[C, asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop: Any = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    await serve(config, stop)
