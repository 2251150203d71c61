"""The served model as the front doors see it: its names, its limits, text to tokens and back."""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from twostep.core.errors import NoReadyNode
from twostep.router.front.openai.accept import ModelLimits, require_tokens
from twostep.router.text.templates.conversation import Conversation, Renderer
from twostep.router.text.tokenizer import Tokenizer

SHORT_CHARACTERS = 4096
SHORT_TOKENS = 4096


class ServedModel:
    """`names` are those a client may ask for, the first being the one that is listed; `source` is where it comes from."""

    def __init__(
        self, names: Sequence[str], source: str, tokenizer: Tokenizer, renderer: Renderer, limits: Callable[[], ModelLimits]
    ) -> None:
        self.names = tuple(names)
        self.source = source
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.limits = limits
        # One core is left to the event loop: many long prompts at once only wait for each other.
        self._encoders = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), "encode")

    @property
    def max_model_tokens(self) -> int | None:
        """How many tokens prompt and answer may have together; None while no decode node is ready."""
        try:
            return self.limits().max_model_tokens
        except NoReadyNode:
            return None

    async def encode(self, conversation: Conversation) -> tuple[int, ...]:
        """Return the tokens of a conversation. Raises InvalidRequest and Overloaded."""
        return await self.encode_text(await self.renderer.render(conversation), add_special_tokens=False)

    async def encode_text(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Return the tokens of `text`. A long one is encoded off the event loop."""
        if len(text) <= SHORT_CHARACTERS:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        encode = partial(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return await asyncio.get_running_loop().run_in_executor(self._encoders, encode)

    async def decode(self, tokens: Sequence[int], *, field: str) -> str:
        """Return the text of `tokens`, which stand in `field`. Raises InvalidRequest for a token the model does not have."""
        require_tokens(tokens, self.limits().vocab_size, field)
        if len(tokens) <= SHORT_TOKENS:
            return self.tokenizer.decode(tokens)
        return await asyncio.to_thread(self.tokenizer.decode, tokens)
