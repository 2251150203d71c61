"""docs/configuration.md: a table of every key of each program, from the dataclasses that read them."""

import json
from collections.abc import Iterator
from typing import Any

from config_schema import PROGRAMS, Schema, config_schema

HEAD = """# Configuration

Every key of every program, written from the dataclasses that read them (`make chart`). Each program takes one YAML file
(`--config FILE`), then any number of `--set a.b=value`. An unknown key, or a value that cannot be, ends it with exit code 2 and
one line that says which, where from, and what was expected.
"""
TITLES = {
    "router": "The router (`python -m twostep.router`)",
    "prefill": "Prefill nodes (`python -m twostep.prefill_node`)",
    "decode": "Decode nodes (`python -m twostep.decode_node`)",
    "autoscaler": "The autoscaler (`python -m twostep.autoscaler`)",
}


def configuration_page() -> str:
    return "\n".join([HEAD, *(line for program in PROGRAMS for line in _program(program))]).rstrip() + "\n"


def _program(program: str) -> Iterator[str]:
    schema = config_schema(program)
    yield f"## {TITLES[program]}\n"
    yield "| key | type | default | what it is |"
    yield "|---|---|---|---|"
    yield from _rows(schema, "", schema.get("$defs", {}))
    yield ""


def _rows(section: Schema, prefix: str, definitions: dict[str, Schema]) -> Iterator[str]:
    required = set(section.get("required", ()))
    for key, given in section["properties"].items():
        inner = _section(given, definitions)
        text = " ".join((given.get("description") or (inner or {}).get("description") or "").split())
        default = "required" if key in required else "" if inner else f"`{json.dumps(given.get('default'))}`"
        yield f"| `{prefix}{key}` | {_type(given, inner)} | {default} | {text.replace('|', chr(92) + '|')} |"
        if inner:
            yield from _rows(inner, f"{prefix}{key}.", definitions)


def _section(given: Schema, definitions: dict[str, Schema]) -> Schema | None:
    """Return the section that a key is, seen through `| None`."""
    candidates = [given, *given.get("anyOf", ()), *given.get("allOf", ())]
    found = [candidate["$ref"].rpartition("/")[2] for candidate in candidates if "$ref" in candidate]
    return definitions[found[0]] if found else None


def _type(given: Schema, inner: Schema | None) -> str:
    if inner:
        return "section"
    return " or ".join(dict.fromkeys(_plain(candidate) for candidate in given.get("anyOf", [given])))


def _plain(given: Schema) -> str:
    if "enum" in given or "const" in given:
        return ", ".join(f"`{value}`" for value in given.get("enum", [given.get("const")]))
    kind: Any = given.get("type", "any")
    if kind == "array":
        return f"list of {_plain(given.get('items', {}))}"
    return "path" if given.get("format") == "path" else str(kind)
