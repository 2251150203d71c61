"""Finds out, by trying, what a chat template makes of the forms in which OpenAI's clients send messages.

Templates say nowhere whether they take text or lists of parts, and what they do not know many of them leave out silently.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from twostep.router.text.templates.conversation import Message

RENDER_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a template's own expressions can raise on messages that it does not expect."""

MARK = "a7f3c9e1"
HELLO: Message = {"role": "user", "content": "Hello"}

RenderMessages = Callable[[Sequence[Message]], str]


@dataclass(frozen=True, slots=True)
class Habits:
    """Roles whose content a template shows when it is a string, and when it is a list of text parts.

    `takes_argument_objects`: tool calls' arguments are to be given as objects, not as JSON text.
    `no_content`: what stands for the content of a message that has only tool calls.
    """

    text_roles: frozenset[str]
    parts_roles: frozenset[str]
    takes_argument_objects: bool
    no_content: Message

    @property
    def knows_developer(self) -> bool:
        return "developer" in self.text_roles | self.parts_roles


def find_habits(render: RenderMessages) -> Habits:
    """Return what `render`, a template applied to messages, can do."""
    parts = [{"type": "text", "text": MARK}]
    with_object, with_text = (_forms_that_show_a_call(render, arguments) for arguments in ({MARK: 1}, f'{{"{MARK}": 1}}'))
    return Habits(
        text_roles=frozenset(role for role in CONVERSATIONS if _shows(render, CONVERSATIONS[role](MARK))),
        parts_roles=frozenset(role for role in CONVERSATIONS if _shows(render, CONVERSATIONS[role](parts))),
        takes_argument_objects=bool(with_object) or not with_text,
        no_content=next(iter(with_object or with_text or _forms_that_render(render)), MISSING),
    )


CONVERSATIONS: Mapping[str, Callable[[Any], Sequence[Message]]] = {
    "system": lambda content: [{"role": "system", "content": content}, HELLO],
    "developer": lambda content: [{"role": "developer", "content": content}, HELLO],
    "user": lambda content: [{"role": "user", "content": content}],
    "assistant": lambda content: [HELLO, {"role": "assistant", "content": content}, HELLO],
}

MISSING: Message = {}
NO_CONTENT: Sequence[Message] = (MISSING, {"content": ""}, {"content": [{"type": "text", "text": ""}]}, {"content": None})
"""The forms in which a message can have no content. Null comes last: many templates print it."""


def _shows(render: RenderMessages, messages: Sequence[Message]) -> bool:
    """Whether the mark stands in the prompt by itself: between quotes it is part of a printed list."""
    text = _try(render, messages)
    return MARK in text and f"'{MARK}'" not in text and f'"{MARK}"' not in text


def _forms_that_show_a_call(render: RenderMessages, arguments: Any) -> list[Message]:
    return [form for form in NO_CONTENT if MARK in _try(render, _calling(form, arguments))]


def _forms_that_render(render: RenderMessages) -> list[Message]:
    return [form for form in NO_CONTENT if _try(render, _calling(form, {}))]


def _calling(no_content: Message, arguments: Any) -> Sequence[Message]:
    call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return [HELLO, {"role": "assistant", **no_content, "tool_calls": [call]}]


def _try(render: RenderMessages, messages: Sequence[Message]) -> str:
    try:
        return render(messages)
    except RENDER_ERRORS:
        return ""
