"""How each program starts and stops: arguments, configuration, logging, signals, exit code."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from twostep.core.config import load
from twostep.core.errors import ConfigError, EngineFault
from twostep.core.logging import set_up_logging

C = TypeVar("C")
SIGNALLED = 128
"""What a shell adds to the number of the signal that has ended a process."""


def run_program(
    name: str,
    description: str,
    config_class: type[C],
    serve: Callable[[C, asyncio.Event], Awaitable[None]],
    argv: Sequence[str] | None = None,
) -> int:
    """Run `serve(config, stop)` until it returns; SIGTERM and SIGINT set `stop`. Returns the process's exit code.

    The second signal of a kind ends the process at once, with code 128 + its number: 143 for SIGTERM, 130 for SIGINT. One
    line on stderr tells why a program ends by itself: a ConfigError, from reading the configuration or from `serve`, with
    code 2; an EngineFault with code 1.
    """
    try:
        arguments = _parser(name, description).parse_args(argv)
        config = load(config_class, arguments.config, arguments.set)
        set_up_logging(name, log_format=arguments.log_format, level=arguments.log_level)
        asyncio.run(_serve_until_signal(config, serve))
    except (ConfigError, EngineFault, ExceptionGroup) as raised:
        reason = _reason(raised)
        if reason is None:
            raise
        print(f"{name}: {reason}", file=sys.stderr)
        return ConfigError.exit_code if isinstance(reason, ConfigError) else 1
    return 0


def leave(code: int) -> NoReturn:
    """End the process without taking the interpreter down first.

    That would end threads inside foreign code, such as that of a load that was given up, and C++ answers it with an abort.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _reason(raised: Exception) -> Exception | None:
    """Return the foreseen error in `raised`, looking into groups; None when anything else is in it, which is a bug."""
    if not isinstance(raised, ExceptionGroup):
        return raised if isinstance(raised, ConfigError | EngineFault) else None
    reasons = [_reason(error) for error in raised.exceptions]
    return None if None in reasons else reasons[0]


class OneLineParser(argparse.ArgumentParser):
    """Takes options only when spelt out, and raises ConfigError where argparse would print its usage and exit."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = OneLineParser(prog=name, description=description)
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
        loop.add_signal_handler(signum, _stop, loop, signum, stop)
    await serve(config, stop)


def _stop(loop: asyncio.AbstractEventLoop, signum: signal.Signals, stop: asyncio.Event) -> None:
    """Begin to stop; whoever sends the signal again does not want to wait for the end of that."""
    stop.set()
    loop.remove_signal_handler(signum)
    signal.signal(signum, _end_at_once)


def _end_at_once(signum: int, _: FrameType | None) -> None:
    leave(SIGNALLED + signum)
