"""Lets the model go on with the last message: the prompt ends where that message's text ends.

A mark is put after the text before rendering, and the prompt is cut there, as `transformers` does.
"""

from collections.abc import Sequence
from typing import Any

from twostep.core.errors import InvalidRequest

MARK = "CONTINUE_FINAL_MESSAGE_TAG "


def with_mark(messages: Sequence[dict[str, Any]], source: str) -> tuple[list[dict[str, Any]], str]:
    """Return the messages with the mark at the end of the last text, and that text. Raises InvalidRequest without one."""
    final = messages[-1]
    if final.get("content") is None:
        raise _refused("the last message has no content")
    if "content" not in source:
        raise _refused("the model's chat template takes no content")
    content = final["content"]
    if isinstance(content, str):
        return [*messages[:-1], {**final, "content": content + MARK}], content
    last = max(index for index, part in enumerate(content) if "text" in part)
    parts = [{**part, "text": part["text"] + MARK} if index == last else part for index, part in enumerate(content)]
    return [*messages[:-1], {**final, "content": parts}], content[last]["text"]


def cut_at_mark(prompt: str, final: str) -> str:
    """Return the prompt up to the mark. Raises InvalidRequest when the template changed or left out the last message."""
    place = prompt.rfind(MARK.strip())
    if place < 0 or final.strip() not in prompt:
        raise _refused("the model's chat template leaves out parts of the last message")
    if prompt.startswith(MARK, place):
        return prompt[:place]
    # The template trims its messages, so the text's own trailing space is not there either.
    return prompt[:place].rstrip()


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"continue_final_message: {why}", param="continue_final_message")
