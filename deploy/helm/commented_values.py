"""Reads values.yaml with the comments above its keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class Value:
    """One key: its path, what it is by default, and the comment above it. `is_leaf`: its default is written in one line."""

    path: tuple[str, ...]
    default: Any
    comment: str
    is_leaf: bool

    @property
    def key(self) -> str:
        return ".".join(self.path)


def commented(text: str) -> Iterator[Value]:
    """Yield every key of the file, sections before what is in them."""
    root = yaml.compose(text)
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("expected a mapping of keys to values")
    yield from _walk(root, (), text.splitlines())


def _walk(section: yaml.MappingNode, path: tuple[str, ...], lines: list[str]) -> Iterator[Value]:
    for key, value in section.value:
        here = (*path, key.value)
        is_leaf = not isinstance(value, yaml.MappingNode) or value.flow_style
        default = yaml.safe_load(yaml.serialize(value))
        yield Value(here, default, _comment_above(lines, key.start_mark.line), bool(is_leaf))
        if isinstance(value, yaml.MappingNode):
            yield from _walk(value, here, lines)


def _comment_above(lines: list[str], line: int) -> str:
    found: list[str] = []
    while line and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        found.insert(0, lines[line].lstrip().removeprefix("#").strip())
    return " ".join(found)
