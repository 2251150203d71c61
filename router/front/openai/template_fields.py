"""Checks the JSON that goes into chat templates as it is: only what the templates rely on."""

from typing import Any

JsonObject = dict[str, Any]


def _object(**properties: JsonObject) -> JsonObject:
    return {"type": "object", "required": list(properties), "properties": properties}


TEXT_SCHEMA = {"type": "string"}
FUNCTION_SCHEMA = {"const": "function"}
TOOL_SCHEMA = _object(type=FUNCTION_SCHEMA, function=_object(name=TEXT_SCHEMA))
TOOL_CALL_SCHEMA = _object(id=TEXT_SCHEMA, type=FUNCTION_SCHEMA, function=_object(name=TEXT_SCHEMA, arguments=TEXT_SCHEMA))
"""What the checks below ask for, as clients are told it."""

OWN_FIELDS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"})


def check_tool(tool: JsonObject) -> JsonObject:
    """Return the tool. Raises ValueError unless it is a function with a name."""
    match tool:
        case {"type": "function", "function": {"name": str()}}:
            return tool
    raise ValueError("expected {'type': 'function', 'function': {'name': ..., ...}}")


def check_tool_call(call: JsonObject) -> JsonObject:
    """Return the call. Raises ValueError unless it is that of a named function with arguments in JSON text."""
    match call:
        case {"id": str(), "type": "function", "function": {"name": str(), "arguments": str()}}:
            return call
    raise ValueError("expected {'id': ..., 'type': 'function', 'function': {'name': ..., 'arguments': '{...}'}}")


def check_template_settings(settings: JsonObject) -> JsonObject:
    """Return the settings. Raises ValueError when one has the name of a request field or of another argument."""
    if taken := sorted(OWN_FIELDS & settings.keys()):
        raise ValueError(f"{taken[0]} is a field of its own")
    return settings
