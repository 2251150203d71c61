"""The program that runs chat templates: `python -m twostep.router.text.templates.process`, started by the router.

A template is code from a model's folder. It may loop for ever, or ask for all the memory there is, inside one expression:
only a process of its own ends such a thing in bounded time and memory.
"""

import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from pydantic_core import PydanticSerializationError

from twostep.core.errors import ConfigError, InvalidRequest
from twostep.router.text.templates.conversation import Conversation
from twostep.router.text.templates.frames import pack, read_frames, unpack
from twostep.router.text.templates.template import ChatTemplates

MEMORY_BYTES = 512 << 20


def main(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer the set-up, then each conversation, until `requests` ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    templates: ChatTemplates | None = None
    limit_s = 0.0
    for frame in read_frames(requests):
        limit_s = limit_s or unpack(frame)["processor_time_s"]
        with processor_time(limit_s):
            if templates is None:
                templates, answer = _set_up(unpack(frame))
            else:
                answer = _render(templates, frame)
        answers.write(answer)
        answers.flush()


@contextmanager
def processor_time(limit_s: float) -> Iterator[None]:
    """End the process, by SIGPROF, when the block uses more processor time than that."""
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _set_up(frame: Mapping[str, Any]) -> tuple[ChatTemplates | None, bytes]:
    try:
        return ChatTemplates(frame["sources"], frame["special_tokens"]), pack({})
    except (ConfigError, InvalidRequest) as error:
        return None, pack({"error": str(error)})


def _render(templates: ChatTemplates, frame: bytes) -> bytes:
    try:
        conversation = Conversation(**unpack(frame))
    except ValueError as cause:
        return pack({"error": f"the conversation cannot be rendered: {cause}", "param": None})
    try:
        return pack({"text": templates.render(conversation)})
    except InvalidRequest as error:
        return pack({"error": error.message, "param": error.param})
    except PydanticSerializationError:
        return pack({"error": "messages: the chat template made text that is not Unicode", "param": "messages"})
    except MemoryError:
        return pack({"error": f"messages: the chat template needs more than {MEMORY_BYTES >> 20} MiB", "param": "messages"})


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
