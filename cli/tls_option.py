"""`--tls-of FILE`: how a command proves to nodes that it belongs to their cluster."""

import argparse
from pathlib import Path

from twostep.core.certificates import TlsConfig
from twostep.core.config import check, read_values
from twostep.proto.security import Security, security_of

IN_A_POD = Path("/etc/twostep/config.yaml")
"""Where the Helm chart puts a program's configuration, so that a command run in its pod needs no option."""


def add_tls_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tls-of",
        type=Path,
        metavar="FILE",
        default=IN_A_POD if IN_A_POD.exists() else None,
        help="call nodes with the certificate from the `tls` section of this configuration file",
    )


def security_from(path: Path | None) -> Security:
    """Return how to call nodes. Raises ConfigError when the file or what it names cannot be used."""
    tls = read_values(path).get("tls") if path else None
    return security_of(check(TlsConfig, tls, path) if tls is not None else None)
