"""The options of the commands that start a cluster: which file, and what is short for `--set KEY=VALUE`."""

import argparse
import json
from pathlib import Path


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Afterwards `arguments.config` is the file and `arguments.overrides` holds every other option as KEY=VALUE, in order."""
    parser.set_defaults(overrides=[])
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with sections engine, prefill, decode, router")
    _short_for(parser, "--model", "model", "MODEL", "a name from `twostep models list`, or a Hugging Face folder")
    _short_for(parser, "--prefill", "num_prefill", "N", "how many prefill nodes")
    _short_for(parser, "--decode", "num_decode", "N", "how many decode nodes")
    _short_for(parser, "--host", "router.host", "HOST", "where the router listens")
    _short_for(parser, "--port", "router.port", "PORT", "the router's port; 0 takes any free one")
    _short_for(parser, "--transport", "transport", "NAME", "nixl, ucx, or local: all nodes in one process")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        metavar="KEY=VALUE",
        help="set one key: engine.X of all nodes, prefill.X, decode.X or router.X of one program; may be repeated",
    )


def _short_for(parser: argparse.ArgumentParser, option: str, key: str, metavar: str, help_text: str) -> None:
    def as_override(text: str) -> str:
        return f"{key}={text if text.isdecimal() else json.dumps(text)}"

    parser.add_argument(option, dest="overrides", action="append", type=as_override, metavar=metavar, help=help_text)
