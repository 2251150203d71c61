"""POST /v1/chat/completions: from the body to the last byte of the reply."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from twostep.core.errors import ServingError
from twostep.core.request import FinishReason, Request
from twostep.router.admission import Admission
from twostep.router.config import RouterConfig
from twostep.router.dispatch import Dispatch
from twostep.router.event_stream import EventStream
from twostep.router.http_edge import IDS, ClientGone, RequestIds, read_body, unless_gone
from twostep.router.metrics import Metrics
from twostep.router.model import ServedModel
from twostep.router.openai.accept import accept, require_model, stop_strings, template_messages
from twostep.router.openai.chat_reply import DONE, ReplyWriter, Usage, error_event
from twostep.router.openai.chat_request import ChatRequest
from twostep.router.openai.parse import parse_chat_request
from twostep.router.run import Outcome
from twostep.router.transcript import Transcript

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """One accepted request with what is needed to answer it."""

    chat: ChatRequest
    request: Request
    transcript: Transcript
    writer: ReplyWriter
    arrived: float

    @property
    def wants_usage(self) -> bool:
        return bool(self.chat.stream_options and self.chat.stream_options.include_usage)

    def usage(self, outcome: Outcome) -> Usage:
        return Usage(len(self.request.prompt), self.transcript.num_tokens, outcome.cached_tokens)

    def extra(self, outcome: Outcome) -> dict[str, Any]:
        return {"bill": outcome.bill.as_json()} if self.chat.bill else {}

    def finish_reason(self, outcome: Outcome) -> FinishReason:
        return FinishReason.STOP if self.transcript.is_stopped or outcome.finish is None else outcome.finish


class ChatCompletions:
    """The ASGI endpoint. Raises ServingError for whatever goes wrong before the reply has begun."""

    def __init__(
        self, model: ServedModel, dispatch: Dispatch, admission: Admission, metrics: Metrics, config: RouterConfig
    ) -> None:
        self._model = model
        self._dispatch = dispatch
        self._admission = admission
        self._metrics = metrics
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome = "internal_error"
        try:
            outcome = await self._answer(scope, receive, send)
        except ServingError as error:
            outcome = error.code
            raise
        except ClientGone as gone:
            outcome = "client_gone"
            log.info("client gone", extra={"request": scope[IDS].internal, "reason": str(gone)})
        finally:
            self._metrics.requests.labels(outcome).inc()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> str:
        arrived = asyncio.get_running_loop().time()
        chat = parse_chat_request(await read_body(scope, receive, limit=self._config.max_body_bytes))
        require_model(chat, self._model.names)
        with self._admission.admit():
            job = await self._accept(chat, scope[IDS], arrived)
            reply = self._stream(job, send) if chat.stream else self._whole(job, scope, receive, send)
            return await unless_gone(receive, reply)

    async def _accept(self, chat: ChatRequest, ids: RequestIds, arrived: float) -> Job:
        limits = self._model.limits()
        prompt = await self._model.encode(template_messages(chat))
        request = accept(chat, ids.internal, prompt, limits, self._model.tokenizer.eos_ids)
        transcript = Transcript(self._model.tokenizer.detokenizer(), request.stop, stop_strings(chat))
        writer = ReplyWriter(ids.internal, chat.model or self._model.names[0], int(time.time()))
        return Job(chat, request, transcript, writer, arrived)

    async def _whole(self, job: Job, scope: Scope, receive: Receive, send: Send) -> str:
        pieces: list[str] = []

        async def on_tokens(tokens: Sequence[int]) -> bool:
            pieces.extend(job.transcript.add(token) for token in tokens)
            return not job.transcript.is_stopped

        outcome = await self._dispatch.run(job.request, on_tokens, arrived=job.arrived, wants_bill=job.chat.bill)
        pieces.append(job.transcript.flush())
        finish, usage = job.finish_reason(outcome), job.usage(outcome)
        body = job.writer.whole("".join(pieces), finish, usage, job.extra(outcome))
        self._record(job, outcome)
        await JSONResponse(body)(scope, receive, send)
        return finish

    async def _stream(self, job: Job, send: Send) -> str:
        stream = EventStream(send, stall_s=self._config.client_stall_s)
        try:
            outcome = await self._stream_tokens(job, stream)
        except ServingError as error:
            if not stream.has_started:
                raise
            await stream.end(error_event(error))
            return error.code
        finish = job.finish_reason(outcome)
        self._record(job, outcome)
        await stream.end(self._last_events(job, outcome, finish))
        return finish

    async def _stream_tokens(self, job: Job, stream: EventStream) -> Outcome:
        async def on_tokens(tokens: Sequence[int]) -> bool:
            texts = [job.transcript.add(token) for token in tokens]
            events = b"".join(job.writer.text(text) for text in texts if text)
            await stream.write(events if stream.has_started else job.writer.role() + events)
            return not job.transcript.is_stopped

        return await self._dispatch.run(job.request, on_tokens, arrived=job.arrived, wants_bill=job.chat.bill)

    def _last_events(self, job: Job, outcome: Outcome, finish: FinishReason) -> bytes:
        rest, extra = job.transcript.flush(), job.extra(outcome)
        text = job.writer.text(rest) if rest else b""
        if not job.wants_usage:
            return text + job.writer.finish(finish, extra) + DONE
        return text + job.writer.finish(finish, {}) + job.writer.usage(job.usage(outcome), extra) + DONE

    def _record(self, job: Job, outcome: Outcome) -> None:
        bill, usage = outcome.bill, job.usage(outcome)
        self._metrics.prompt_tokens.inc(usage.prompt_tokens)
        self._metrics.cached_tokens.inc(usage.cached_tokens)
        self._metrics.completion_tokens.inc(usage.completion_tokens)
        self._metrics.ttft.observe(bill.ttft)
        if usage.completion_tokens > 1:
            self._metrics.tpot.observe(bill.per_token)
