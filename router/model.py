"""The served model as the HTTP edge sees it: its names, its limits, and text to tokens."""

import asyncio
from collections.abc import Callable, Sequence

from twostep.router.chat_template import Message
from twostep.router.openai.accept import ModelLimits
from twostep.router.tokenizer import Tokenizer

SHORT_CHARACTERS = 4096


class ServedModel:
    """`names` are those a client may ask for, the first being the one that is listed."""

    def __init__(self, names: Sequence[str], tokenizer: Tokenizer, limits: Callable[[], ModelLimits]) -> None:
        self.names = tuple(names)
        self.tokenizer = tokenizer
        self.limits = limits

    async def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the prompt's tokens. Raises InvalidRequest. A long text is encoded off the event loop."""
        text = self.tokenizer.render(messages)
        if len(text) <= SHORT_CHARACTERS:
            return self.tokenizer.encode(text)
        return await asyncio.to_thread(self.tokenizer.encode, text)
