"""Finds a model's chat templates in its folder: one or several, in the places where `transformers` keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twostep.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TemplateSet:
    """The templates by name, the special tokens that they may print, and where they come from."""

    sources: Mapping[str, str]
    special_tokens: Mapping[str, str]
    origin: str


def read_template_set(folder: Path, settings: Mapping[str, Any], chat_template: Path | None) -> TemplateSet:
    """Return the templates of `folder`, whose tokenizer_config.json holds `settings`; or the one in `chat_template` alone.

    Raises ConfigError when there is none.
    """
    if chat_template:
        return TemplateSet({"default": _read(chat_template)}, special_tokens(settings), str(chat_template))
    sources = _in_files(folder) or _in_settings(settings.get("chat_template"))
    if not sources:
        raise ConfigError(f"{folder}: the model has no chat template; give one with chat_template=FILE")
    return TemplateSet(sources, special_tokens(settings), str(folder))


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the tokens that tokenizer_config.json names, such as `bos_token`."""
    named = {name: value for name, value in settings.items() if name.endswith("_token")}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _in_files(folder: Path) -> dict[str, str]:
    named = {path.stem: _read(path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    default = folder / "chat_template.jinja"
    return {"default": _read(default), **named} if default.is_file() else named


def _in_settings(source: Any) -> dict[str, str]:
    match source:
        case str():
            return {"default": source}
        case list():
            return dict(_named(entry) for entry in source)
        case dict():
            return {str(name): str(template) for name, template in source.items()}
    return {}


def _named(entry: Any) -> tuple[str, str]:
    match entry:
        case {"name": str(name), "template": str(template)}:
            return name, template
    raise ConfigError(f"tokenizer_config.json: chat_template: expected a name and a template, found {entry!r:.80}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path}: cannot be read: {cause}") from cause
