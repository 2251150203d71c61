"""The served model as the HTTP edge sees it: its names, its limits, and text to tokens."""

import asyncio
from collections.abc import Callable, Sequence

from twostep.router.openai.accept import ModelLimits
from twostep.router.templates.conversation import Conversation, Renderer
from twostep.router.tokenizer import Tokenizer

SHORT_CHARACTERS = 4096


class ServedModel:
    """`names` are those a client may ask for, the first being the one that is listed."""

    def __init__(
        self, names: Sequence[str], tokenizer: Tokenizer, renderer: Renderer, limits: Callable[[], ModelLimits]
    ) -> None:
        self.names = tuple(names)
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.limits = limits

    async def encode(self, conversation: Conversation) -> tuple[int, ...]:
        """Return the prompt's tokens. Raises InvalidRequest and Overloaded. A long text is encoded off the event loop."""
        text = await self.renderer.render(conversation)
        if len(text) <= SHORT_CHARACTERS:
            return self.tokenizer.encode(text)
        return await asyncio.to_thread(self.tokenizer.encode, text)
