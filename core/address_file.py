"""The file by which a program tells whoever started it where it listens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twostep.core.errors import ConfigError


def write_address_file(path: Path, addresses: Mapping[str, Any]) -> None:
    """Write `addresses` as JSON, all at once: a reader never sees half a file. Raises ConfigError when it cannot be written."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_text(json.dumps(addresses) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as cause:
        raise ConfigError(f"address_file: {path} cannot be written: {cause.strerror or cause}") from cause
