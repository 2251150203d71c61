"""Gives messages the form that a template takes, where a client may send several that mean the same."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from twostep.core.errors import InvalidRequest
from twostep.router.text.templates.conversation import Message
from twostep.router.text.templates.probe import Habits

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


def adapt(messages: Sequence[Message], habits: Habits) -> list[dict[str, Any]]:
    """Return the messages as the template takes them. What it takes in the form that was sent stays as it was sent.

    Raises InvalidRequest when a tool call's arguments are no JSON object.
    """
    return [_adapt(message, habits, f"messages[{position}]") for position, message in enumerate(messages)]


def _adapt(message: Message, habits: Habits, where: str) -> dict[str, Any]:
    # A missing key is what most templates expect; null is printed by many of them.
    adapted = {name: value for name, value in message.items() if value is not None}
    if adapted["role"] == "developer" and not habits.knows_developer:
        adapted["role"] = "system"
    if "content" in adapted:
        adapted["content"] = _content(adapted["content"], adapted["role"], habits)
    elif "tool_calls" in adapted:
        adapted.update(habits.no_content)
    if "tool_calls" in adapted and habits.takes_argument_objects:
        adapted["tool_calls"] = [
            _with_argument_object(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(adapted["tool_calls"])
        ]
    return _with_reasoning(adapted)


def _content(content: Any, role: str, habits: Habits) -> Any:
    # Roles that were not tried, such as `tool`, are taken to be like the user's.
    tried = role if role in ("system", "developer", "assistant") else "user"
    takes_parts, takes_text = tried in habits.parts_roles, tried in habits.text_roles
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if takes_parts and not takes_text else content
    return content if takes_parts else "\n".join(part["text"] for part in content)


def _with_argument_object(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": _argument_object(function["arguments"], where)}}


def _argument_object(text: str, where: str) -> dict[str, Any]:
    field = f"{where}.function.arguments"
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as cause:
        raise InvalidRequest(f"{field}: not valid JSON: {cause}", param=field) from cause
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{field}: expected a JSON object, found {type(arguments).__name__}", param=field)
    return arguments


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with its reasoning under each name that a template may read it by."""
    reasoning = next((message[name] for name in REASONING_FIELDS if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}
