"""How one OpenAI endpoint reads requests and writes replies; all else is the same for all of them."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from twostep.core.ids import RequestId
from twostep.router.front.generation import Prompt
from twostep.router.front.model import ServedModel
from twostep.router.front.openai.chat_reply import ChatReplyWriter
from twostep.router.front.openai.chat_request import ChatRequest
from twostep.router.front.openai.completion_reply import CompletionReplyWriter
from twostep.router.front.openai.completion_request import CompletionRequest, GivenPrompt
from twostep.router.front.openai.conversation_of import conversation_of
from twostep.router.front.openai.generation_fields import GenerationFields
from twostep.router.front.openai.parse import parse_chat_request, parse_completion_request
from twostep.router.front.openai.reply import ReplyWriter

F = TypeVar("F", bound=GenerationFields)


class Dialect(Protocol[F]):
    """One endpoint's own words."""

    def parse(self, body: bytes) -> F:
        """Return the request in `body`. Raises InvalidRequest."""

    def num_choices(self, asked: F) -> int: ...

    async def prompts(self, asked: F, model: ServedModel) -> Sequence[Prompt]:
        """Return one prompt per choice. Raises InvalidRequest."""

    def writer(self, request: RequestId, model: str, created: int, *, num_choices: int) -> ReplyWriter: ...


class Chat:
    """/v1/chat/completions: one conversation, one choice."""

    def parse(self, body: bytes) -> ChatRequest:
        return parse_chat_request(body)

    def num_choices(self, _: ChatRequest) -> int:
        return 1

    async def prompts(self, asked: ChatRequest, model: ServedModel) -> Sequence[Prompt]:
        return [Prompt(await model.encode(conversation_of(asked)), "messages")]

    def writer(self, request: RequestId, model: str, created: int, *, num_choices: int) -> ReplyWriter:  # noqa: ARG002
        return ChatReplyWriter(request, model, created)


class PlainCompletion:
    """/v1/completions: one choice for each prompt, in order."""

    def parse(self, body: bytes) -> CompletionRequest:
        return parse_completion_request(body)

    def num_choices(self, asked: CompletionRequest) -> int:
        return len(asked.prompt)

    async def prompts(self, asked: CompletionRequest, model: ServedModel) -> Sequence[Prompt]:
        return [await self._prompt(given, asked, model) for given in asked.prompt]

    def writer(self, request: RequestId, model: str, created: int, *, num_choices: int) -> ReplyWriter:
        return CompletionReplyWriter(request, model, created, num_choices=num_choices)

    async def _prompt(self, given: GivenPrompt, asked: CompletionRequest, model: ServedModel) -> Prompt:
        field, value = given.field, given.value
        if isinstance(value, str):
            tokens = await model.encode_text(value, add_special_tokens=asked.add_special_tokens)
            return Prompt(tokens, field, value if asked.echo else "")
        echo = await model.decode(value, field=field) if asked.echo else ""
        return Prompt(value, field, echo, is_given=True)
