"""One answer, from the tokens of a prompt to text and tokens: what every front door asks for."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from twostep.core.ids import RequestId
from twostep.core.logging import about_request
from twostep.core.request import FinishReason, Request
from twostep.router.bill import Bill, Intake
from twostep.router.front.model import ServedModel
from twostep.router.front.openai.accept import accept, require_tokens
from twostep.router.front.openai.generation_fields import GenerationFields
from twostep.router.front.openai.usage import Usage
from twostep.router.front.wishes import NO_WISHES, Wishes
from twostep.router.metrics import Metrics
from twostep.router.requests.dispatch import Dispatch
from twostep.router.requests.run import Outcome
from twostep.router.text.transcript import Piece, Transcript

T = TypeVar("T")

UntilServed = Callable[[], Awaitable[None]]
"""Waits, for a while at most, until a request can be served."""


class PieceSink(Protocol):
    """Where the pieces of an answer go as they come."""

    def put(self, pieces: Sequence[Piece]) -> bool:
        """Take pieces; returns whether they have gone out, which needed no waiting. Else `settle` lets them."""

    async def settle(self) -> None:
        """Let what was put go out; waits while nobody takes it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's tokens, the name of the field it stands in, and the text that the reply begins with.

    The client itself has given the tokens where `is_given`; else the model's tokenizer has made them.
    """

    tokens: tuple[int, ...]
    field: str
    echo: str = ""
    is_given: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be generated. `timeout_s` counts from the request's arrival."""

    request: Request
    stops: tuple[str, ...]
    wants_bill: bool
    intake: Intake
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """How an answer ended. `rest` is text that was held back until its end."""

    finish: FinishReason
    rest: str
    usage: Usage
    bill: Bill


class Generator:
    """Serves asks on the nodes and counts what they cost."""

    def __init__(
        self, model: ServedModel, dispatch: Dispatch, metrics: Metrics, *, timeout_s: float, until_served: UntilServed
    ) -> None:
        self._model = model
        self._dispatch = dispatch
        self._metrics = metrics
        self._until_served = until_served
        self._timeout_s = timeout_s

    async def accept(
        self, fields: GenerationFields, prompt: Prompt, request: RequestId, *, intake: Intake, wishes: Wishes = NO_WISHES
    ) -> Ask:
        """Return what `fields` ask for, as soon as it could be served.

        Raises InvalidRequest, PromptTooLong, NoReadyNode.
        """
        clock = asyncio.get_running_loop().time
        wishes = wishes.with_fields(fields)
        waiting = clock()
        await self._until_served()
        intake = replace(intake, queue_s=clock() - waiting, session=wishes.session)
        limits = self._model.limits()
        if prompt.is_given or self._model.tokenizer.vocab_size > limits.vocab_size:
            require_tokens(prompt.tokens, limits.vocab_size, prompt.field)
        eos_ids = self._model.tokenizer.eos_ids
        accepted = accept(fields, request, prompt.tokens, limits, eos_ids, field=prompt.field, level=wishes.level)
        self._metrics.arrived_tokens.observe(len(prompt.tokens))
        timeout_s = self._timeout_s if wishes.timeout_s is None else min(wishes.timeout_s, self._timeout_s)
        return Ask(accepted, fields.stop_strings, fields.bill, intake, timeout_s)

    async def run(self, ask: Ask, sink: PieceSink) -> Answer:
        """Serve one ask; cancelling this ends it on every node. Raises ServingError, and what `sink` raises."""
        transcript = Transcript(self._model.tokenizer.detokenizer(), ask.request.stop, ask.stops)
        told = _Telling(transcript, sink)
        with about_request(ask.request.id):
            outcome = await self._dispatch.run(ask.request, told, intake=ask.intake, timeout_s=ask.timeout_s)
        answer = _answer(ask, transcript, outcome)
        self._count(answer)
        return answer

    def _count(self, answer: Answer) -> None:
        usage, bill = answer.usage, answer.bill
        self._metrics.prompt_tokens.inc(usage.prompt_tokens)
        self._metrics.cached_tokens.inc(usage.cached_tokens)
        self._metrics.completion_tokens.inc(usage.completion_tokens)
        self._metrics.observe_ttft(bill)
        if usage.completion_tokens > 1:
            self._metrics.tpot.observe(bill.per_token)


class _Telling:
    """A TokenSink that passes on what the tokens say, until a stop string has been found."""

    def __init__(self, transcript: Transcript, sink: PieceSink) -> None:
        self._transcript = transcript
        self._sink = sink
        self.is_satisfied = False

    def put(self, tokens: Sequence[int]) -> bool:
        pieces = self._transcript.pieces(tokens)
        self.is_satisfied = self._transcript.is_stopped
        return self._sink.put(pieces)

    async def settle(self) -> None:
        await self._sink.settle()


def _answer(ask: Ask, transcript: Transcript, outcome: Outcome) -> Answer:
    rest = transcript.flush()
    finish = FinishReason.STOP if transcript.is_stopped or outcome.finish is None else outcome.finish
    usage = Usage(len(ask.request.prompt), transcript.num_tokens, outcome.cached_tokens)
    return Answer(finish, rest, usage, outcome.bill)


async def run_together(answers: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return what all of `answers` return, in their order; the first failure ends the others and is raised as it is."""
    if len(answers) == 1:
        return [await answers[0]]
    failed: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer) for answer in answers]
    except ExceptionGroup as failures:
        failed = failures.exceptions[0]
    if failed:
        raise failed
    return [task.result() for task in tasks]
