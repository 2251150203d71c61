"""The chart's README: what stands in README.head.md, then every value."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commented_values import Value, commented
from values_schema import OPEN

HEAD = Path(__file__).with_name("README.head.md")


def readme(values: str) -> str:
    """Return the page for this values.yaml. Raises LookupError for a value that nobody has described."""
    return "\n".join([HEAD.read_text(encoding="utf-8"), *_table(list(commented(values)))]) + "\n"


def _table(values: list[Value]) -> Iterator[str]:
    yield "| value | default | what it is |"
    yield "|---|---|---|"
    for value in values:
        is_inside_a_row = any(
            _is_row(other) and value.path[: len(other.path)] == other.path for other in values if other != value
        )
        if _is_row(value) and not is_inside_a_row:
            if not value.comment:
                raise LookupError(f"values.yaml: {value.key} has no comment above it")
            yield f"| `{value.key}` | `{_short(value.default)}` | {_escape(value.comment)} |"
        elif value.comment and not is_inside_a_row:
            yield f"| **`{value.key}`** | | {_escape(value.comment)} |"


def _is_row(value: Value) -> bool:
    return value.is_leaf or not isinstance(value.default, dict) or value.path[-1] in OPEN


def _short(default: Any) -> str:
    return _escape(json.dumps(default))


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
