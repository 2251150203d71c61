"""A model's chat templates: which one a conversation is rendered with, and what comes of it.

Runs template code: only the template process calls it, where time and memory are bounded.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateSyntaxError

from twostep.core.errors import ConfigError, InvalidRequest
from twostep.router.text.templates.adapt import adapt
from twostep.router.text.templates.continuation import cut_at_mark, with_mark
from twostep.router.text.templates.conversation import Conversation, Message
from twostep.router.text.templates.environment import template_environment
from twostep.router.text.templates.probe import RENDER_ERRORS, find_habits

MAX_PROMPT_CHARACTERS = 16 << 20
MAX_REASON_CHARACTERS = 300


class ChatTemplates:
    """All templates of one model, by name. Raises ConfigError when one does not compile."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._templates = {name: ChatTemplate(name, source, special_tokens) for name, source in sources.items()}

    def render(self, conversation: Conversation) -> str:
        """Return the prompt's text. Raises InvalidRequest when the template refuses the conversation or fails on it."""
        return self._choose(conversation).render(conversation)

    def _choose(self, conversation: Conversation) -> "ChatTemplate":
        name = conversation.template or "default"
        if conversation.template is None and conversation.tools is not None and "tool_use" in self._templates:
            name = "tool_use"
        if name not in self._templates:
            known = ", ".join(repr(known) for known in sorted(self._templates))
            raise InvalidRequest(f"chat_template: the model has {known}, not {name[:80]!r}", param="chat_template")
        return self._templates[name]


class ChatTemplate:
    def __init__(self, name: str, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            self._template = template_environment().from_string(source)
        except TemplateSyntaxError as cause:
            raise ConfigError(f"the chat template {name!r} does not compile: line {cause.lineno}: {cause.message}") from cause
        self._source = source
        self._special_tokens = special_tokens
        self.habits = find_habits(lambda messages: self._render(messages, Conversation(messages)))

    def render(self, conversation: Conversation) -> str:
        messages = adapt(conversation.messages, self.habits)
        try:
            if not conversation.continue_final_message:
                return self._render(messages, conversation)
            marked, final = with_mark(messages, self._source)
            return cut_at_mark(self._render(marked, conversation), final)
        except RENDER_ERRORS as cause:
            reason = (str(cause) or type(cause).__name__)[:MAX_REASON_CHARACTERS]
            raise InvalidRequest(f"messages: the model's chat template refused them: {reason}", param="messages") from cause

    def _render(self, messages: Sequence[Message], conversation: Conversation) -> str:
        given: dict[str, Any] = {
            **self._special_tokens,
            **conversation.settings,
            "messages": list(messages),
            "tools": conversation.tools,
            "documents": conversation.documents,
            "add_generation_prompt": conversation.add_generation_prompt,
        }
        pieces: list[str] = []
        num_characters = 0
        for piece in self._template.generate(given):
            num_characters += len(piece)
            if num_characters > MAX_PROMPT_CHARACTERS:
                raise InvalidRequest(f"messages: the prompt has more than {MAX_PROMPT_CHARACTERS} characters", param="messages")
            pieces.append(piece)
        return "".join(pieces)
