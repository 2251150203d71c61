"""Tells where the router listens: in the log, and to whoever waits for a file."""

import json
import logging
import socket
from collections.abc import Mapping
from pathlib import Path

from twostep.core.errors import ConfigError

log = logging.getLogger(__name__)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tell_addresses(addresses: Mapping[str, str], path: Path | None) -> None:
    """Log `addresses`, by protocol, and write them as JSON to `path`. Raises ConfigError when it cannot be written."""
    log.info("router listens", extra=dict(addresses))
    if path is None:
        return
    # Written beside and renamed, so that nobody reads half of it.
    draft = path.with_name(f"{path.name}.tmp")
    try:
        draft.write_text(json.dumps(addresses), encoding="utf-8")
        draft.replace(path)
    except OSError as cause:
        raise ConfigError(f"address_file: {path} cannot be written: {cause.strerror or cause}") from cause
