"""POST /v1/chat/completions and /v1/completions: from the body to the last byte of the reply."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from twostep.core.errors import ServingError
from twostep.core.ids import RequestId
from twostep.core.spans import TRACE_KEY
from twostep.router.admission.in_flight import Admission
from twostep.router.bill import Intake, server_timing
from twostep.router.config import RouterConfig
from twostep.router.front.generation import Answer, Ask, Generator, run_together
from twostep.router.front.http.body import BodyReader
from twostep.router.front.http.choice_stream import ChoiceStream
from twostep.router.front.http.dialect import Dialect
from twostep.router.front.http.edge import IDS, PIPE, headers_of, unless_gone
from twostep.router.front.http.event_stream import EventStream
from twostep.router.front.model import ServedModel
from twostep.router.front.openai.accept import require_model
from twostep.router.front.openai.event import DONE, error_event, timing_comment
from twostep.router.front.openai.generation_fields import GenerationFields
from twostep.router.front.openai.reply import Choice, ReplyWriter
from twostep.router.front.openai.usage import total
from twostep.router.front.request_record import ClientGone, RequestRecord, recorded
from twostep.router.front.wishes import Wishes, read_wishes
from twostep.router.metrics import Metrics
from twostep.router.text.transcript import Piece

F = TypeVar("F", bound=GenerationFields)


@dataclass(frozen=True, slots=True)
class ChoiceJob:
    """One choice to be answered: `echo` is the text it begins with."""

    index: int
    ask: Ask
    echo: str

    def choice(self, answer: Answer, text: str) -> Choice:
        return Choice(self.index, text, answer.finish, answer.bill if self.ask.wants_bill else None)


@dataclass(frozen=True, slots=True)
class Job:
    """One accepted request with what is needed to answer it."""

    choices: Sequence[ChoiceJob]
    writer: ReplyWriter
    is_streamed: bool
    wants_usage: bool


class Completions(Generic[F]):
    """The ASGI endpoint of one dialect. Raises ServingError for whatever goes wrong before the reply has begun."""

    def __init__(
        self,
        dialect: Dialect[F],
        model: ServedModel,
        generator: Generator,
        bodies: BodyReader,
        admission: Admission,
        metrics: Metrics,
        config: RouterConfig,
    ) -> None:
        self._dialect = dialect
        self._model = model
        self._generator = generator
        self._bodies = bodies
        self._admission = admission
        self._metrics = metrics
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientGone), recorded(self._metrics, scope[IDS], scope["path"]) as record:
            await self._answer(scope, receive, send, record)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> None:
        arrived, given = asyncio.get_running_loop().time(), headers_of(scope)
        intake = Intake(arrived, client_id=scope[IDS].public, traceparent=given.get(TRACE_KEY, ""))
        with ExitStack() as admitted:
            job = await self._accept(scope, receive, intake, given, admitted)
            reply = (
                self._stream(job, scope, send, record) if job.is_streamed else self._whole(job, scope, receive, send, record)
            )
            await unless_gone(receive, reply)

    async def _accept(
        self, scope: Scope, receive: Receive, intake: Intake, given: Mapping[str, str], admitted: ExitStack
    ) -> Job:
        """Return what is to be answered, having `admitted` hold places for it. Nothing of the body outlives this."""
        async with self._bodies.read(scope, receive) as body:
            asked = self._dialect.parse(body)
            require_model(asked.model, self._model.names)
            admitted.enter_context(self._admission.admit(self._dialect.num_choices(asked)))
            job = self._job(asked, scope[IDS].internal, intake, read_wishes(given.get))
            # It may be long until there are nodes that can serve it.
            return await unless_gone(receive, job)

    async def _job(self, asked: F, request: RequestId, intake: Intake, wishes: Wishes) -> Job:
        clock = asyncio.get_running_loop().time
        tokenizing = clock()
        prompts = await self._dialect.prompts(asked, self._model)
        intake = replace(intake, tokenize_s=clock() - tokenizing)
        ids = choice_ids(request, len(prompts))
        asks = [
            await self._generator.accept(asked, prompt, ids[index], intake=intake, wishes=wishes)
            for index, prompt in enumerate(prompts)
        ]
        choices = [ChoiceJob(index, ask, prompts[index].echo) for index, ask in enumerate(asks)]
        name = asked.model or self._model.names[0]
        writer = self._dialect.writer(request, name, int(time.time()), num_choices=len(choices))
        return Job(choices, writer, bool(asked.stream), asked.wants_usage)

    async def _whole(self, job: Job, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> None:
        answered = await run_together([self._collect(one) for one in job.choices])
        answers = [answer for _, answer in answered]
        record.outcome, record.usage = answers[0].finish, total(answer.usage for answer in answers)
        body = job.writer.whole([choice for choice, _ in answered], record.usage)
        await JSONResponse(body, headers={"server-timing": server_timing(answers[0].bill)})(scope, receive, send)

    async def _collect(self, one: ChoiceJob) -> tuple[Choice, Answer]:
        text = _Text(one.echo)
        answer = await self._generator.run(one.ask, text)
        return one.choice(answer, text.whole() + answer.rest), answer

    async def _stream(self, job: Job, scope: Scope, send: Send, record: RequestRecord) -> None:
        stream = EventStream(send, scope.get(PIPE))
        try:
            async with stream.kept_alive(after_s=self._config.keep_alive_s):
                answers = await run_together([self._stream_choice(one, job.writer, stream) for one in job.choices])
        except ServingError as error:
            if not stream.has_started:
                raise
            record.outcome = error.code
            await stream.end(error_event(error))
            return
        record.outcome, record.usage = answers[0].finish, total(answer.usage for answer in answers)
        timing = timing_comment(server_timing(answers[0].bill))
        await stream.end(timing + (job.writer.usage(record.usage) if job.wants_usage else b"") + DONE)

    async def _stream_choice(self, one: ChoiceJob, writer: ReplyWriter, stream: EventStream) -> Answer:
        choice_stream = ChoiceStream(one.index, one.echo, writer, stream)
        answer = await self._generator.run(one.ask, choice_stream)
        await choice_stream.finish(one.choice(answer, answer.rest), answer.rest)
        return answer


class _Text:
    """A PieceSink that keeps the text of an answer until its end."""

    def __init__(self, beginning: str) -> None:
        self._texts = [beginning]

    def put(self, pieces: Sequence[Piece]) -> bool:
        self._texts.extend([text for _, text in pieces])
        return True

    async def settle(self) -> None:
        """Nothing has to go out."""

    def whole(self) -> str:
        return "".join(self._texts)


def choice_ids(request: RequestId, num_choices: int) -> list[RequestId]:
    """Return the names of a request's choices towards the nodes; the only one bears the request's own."""
    if num_choices == 1:
        return [request]
    return [RequestId(f"{request}-{index}") for index in range(num_choices)]
