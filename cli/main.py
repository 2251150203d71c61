"""The command line: one subcommand per file, and errors as one line that says what to do."""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from twostep.cli import chat, demo, doctor, drain, explain, ledger, models, plan, trace, up
from twostep.cli.entry import INTERRUPTED
from twostep.core.errors import ConfigError, ServingError
from twostep.core.program import OneLineParser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 when it was told something impossible, 1 when it failed."""
    try:
        arguments = _parser().parse_args(argv)
        code: int = arguments.run(arguments)
    except ConfigError as error:
        return _complain(error, ConfigError.exit_code)
    except ServingError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="twostep", description="LLM serving with prefill and decode on separate pools.")
    parser.add_argument("--version", action="version", version=f"twostep {version('twostep')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (up, chat, models, ledger, trace, explain, plan, demo, doctor, drain):
        command.add_parser(commands)
    return parser


def _complain(error: Exception, code: int) -> int:
    print(f"twostep: {error}", file=sys.stderr)
    return code
