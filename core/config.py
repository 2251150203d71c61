"""Reads a program's configuration: one frozen dataclass, one YAML file, then `--set a.b=c`.

Environment variables are for secrets only. An unknown key is an error that names the file, the key and what is known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, dataclass_transform, get_args, get_type_hints

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from twostep.core.errors import ConfigError

T = TypeVar("T")

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=0, le=65535)]
"""Of TCP; 0 takes any free one."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make a frozen, keyword-only dataclass whose values are checked and whose unknown keys are refused."""
    strict = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    return cast(type[T], pydantic_dataclass(frozen=True, kw_only=True, slots=True, config=strict)(cls))


def load(cls: type[T], path: Path | None = None, overrides: Sequence[str] = ()) -> T:
    """Return `cls` filled from the YAML file at `path`, then from `overrides` of the form `a.b=value`.

    Raises ConfigError, naming source, key, value and expectation.
    """
    return check(cls, read_values(path, overrides), path, overrides)


def read_values(path: Path | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the nested values that `path` and `overrides` give, unchecked. Raises ConfigError when they cannot be read."""
    values = _read(path) if path else {}
    for override in overrides:
        _apply(values, override)
    return values


def check(cls: type[T], values: dict[str, Any], path: Path | None = None, overrides: Sequence[str] = ()) -> T:
    """Return `cls` filled from `values`; `path` and `overrides` only tell an error where a value came from."""
    try:
        return TypeAdapter(cls).validate_python(values)
    except ValidationError as cause:
        mistakes = [_explain(error, cls, path, overrides) for error in cause.errors(include_url=False)]
        raise ConfigError("; ".join(mistakes)) from cause


def values_of(settings: Any) -> dict[str, Any]:
    """Return the nested values, all of them plain, that `check` makes `settings` of again."""
    values: dict[str, Any] = TypeAdapter(type(settings)).dump_python(settings, mode="json")
    return values


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(cause).split())}") from cause
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, found {type(values).__name__}")
    return values


def _apply(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not all(key.split(".")):
        raise ConfigError(f"--set {override}: expected KEY=VALUE with a dotted key, such as engine.dtype=float32")
    *parents, leaf = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override}: {parent} is a value, not a section")
    try:
        values[leaf] = yaml.safe_load(text)
    except yaml.YAMLError as cause:
        raise ConfigError(f"--set {override}: the value is not valid YAML") from cause


def _explain(error: Any, cls: type, path: Path | None, overrides: Sequence[str]) -> str:
    key = ".".join(str(part) for part in error["loc"])
    source = _source(key, path, overrides)
    match error["type"]:
        case "unexpected_keyword_argument":
            known = ", ".join(_known_keys(cls, error["loc"][:-1]))
            return f"{source}: unknown key {key} (value {error['input']!r}), known here: {known}"
        case "missing":
            return f"{path or '--set'}: {key} is required: give it in the file of --config or as --set {key}=VALUE"
        case "value_error":
            return f"{source}: {key + ': ' if key else ''}{error['ctx']['error']}"
    return f"{source}: {key}: {error['msg']}, found {error['input']!r}"


def _source(key: str, path: Path | None, overrides: Sequence[str]) -> str:
    given = (override.partition("=")[0] for override in overrides)
    by_set = any(key == name or key.startswith(f"{name}.") for name in given)
    return "--set" if by_set or path is None else str(path)


def _known_keys(kind: Any, section: Sequence[str | int]) -> list[str]:
    for part in section:
        kind = _section_class(kind, part)
    return [field.name for field in fields(kind)]


def _section_class(kind: Any, part: str | int) -> Any:
    """Return the dataclass inside field `part` of `kind`, such as one of a list; an index, or the name of a union's member,
    changes nothing."""
    if not isinstance(part, str) or part not in (hints := get_type_hints(kind)):
        return kind
    return next((inside for inside in _inside(hints[part]) if is_dataclass(inside)), kind)


def _inside(hint: Any) -> Iterator[Any]:
    yield hint
    for argument in get_args(hint):
        yield from _inside(argument)
