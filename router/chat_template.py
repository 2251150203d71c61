"""Renders a conversation with a model's own Jinja template, in a sandbox, as `transformers` does."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from twostep.core.errors import ConfigError, InvalidRequest

Message = Mapping[str, Any]

# What a template's own expressions can raise on messages that it does not expect.
RENDER_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class ChatTemplate:
    """One compiled template. Raises ConfigError when it does not compile."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, origin: str) -> None:
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as cause:
            raise ConfigError(f"{origin}: the chat template does not compile: line {cause.lineno}: {cause.message}") from cause
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt's text. Raises InvalidRequest when the template refuses the messages or fails on them."""
        try:
            return self._template.render(
                messages=list(messages), tools=None, documents=None, add_generation_prompt=True, **self._special_tokens
            )
        except RENDER_ERRORS as cause:
            raise InvalidRequest(
                f"messages: the model's chat template refused them: {cause or type(cause).__name__}", param="messages"
            ) from cause


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class GenerationBlock(Extension):
    """`{% generation %}`, which marks the assistant's words for training, renders its content."""

    tags = {"generation"}  # noqa: RUF012 - as declared by Extension

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which changes the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
