"""Renders conversations in template processes, off the event loop and apart from it."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from twostep.core.errors import ConfigError, InvalidRequest, Overloaded, QueueFull, ServingError
from twostep.router.text.model_folder import is_fake, model_folder, read_json
from twostep.router.text.templates.child import ProcessEnded, TemplateProcess
from twostep.router.text.templates.conversation import Conversation, Renderer
from twostep.router.text.templates.folder import TemplateSet, read_template_set
from twostep.router.text.templates.frames import pack
from twostep.router.text.templates.plain import PlainRenderer

log = logging.getLogger(__name__)

NUM_PROCESSES = 2
MAX_WAITING = 1024
WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    frame: bytes
    answer: asyncio.Future[str]


def open_renderer(model: str, chat_template: Path | None) -> AbstractAsyncContextManager[Renderer]:
    """Return the renderer of `model`, a folder or `fake`, to be entered. Raises ConfigError when it has no template."""
    if is_fake(model):
        return nullcontext(PlainRenderer())
    folder = model_folder(model)
    return ProcessRenderer(read_template_set(folder, read_json(folder / "tokenizer_config.json"), chat_template))


class ProcessRenderer:
    """A Renderer over `NUM_PROCESSES` processes, the others than the first started when needed. An async context.

    Entering raises ConfigError when a template does not compile.
    """

    def __init__(self, templates: TemplateSet, *, processor_time_s: float = 2.0) -> None:
        self._templates = templates
        self._processor_time_s = processor_time_s
        self._jobs: asyncio.Queue[Job] = asyncio.Queue(MAX_WAITING)
        self._tasks = asyncio.TaskGroup()
        self._workers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        first = await self._start()
        await self._tasks.__aenter__()
        processes = [first, *[None] * (NUM_PROCESSES - 1)]
        self._workers = [self._tasks.create_task(self._work(process)) for process in processes]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.cancel()
        await self._tasks.__aexit__(None, None, None)

    async def render(self, conversation: Conversation) -> str:
        job = Job(_frame(conversation), asyncio.get_running_loop().create_future())
        try:
            self._jobs.put_nowait(job)
        except asyncio.QueueFull as cause:
            raise QueueFull(f"{MAX_WAITING} conversations wait to be rendered", retry_after_s=1.0) from cause
        try:
            async with asyncio.timeout(WAIT_S):
                return await job.answer
        except TimeoutError as cause:
            raise Overloaded(f"the conversation was not rendered in {WAIT_S:g} s", retry_after_s=1.0) from cause

    async def _start(self) -> TemplateProcess:
        return await TemplateProcess.start(self._templates, processor_time_s=self._processor_time_s)

    async def _work(self, process: TemplateProcess | None) -> None:
        try:
            while True:
                job = await self._jobs.get()
                if not job.answer.done():
                    process = await self._answer(job, process)
        finally:
            if process:
                await process.end()

    async def _answer(self, job: Job, process: TemplateProcess | None) -> TemplateProcess | None:
        """Answer the job and return the process, if it has survived."""
        try:
            process = process or await self._start()
            answer = _text_or_error(await process.ask(job.frame))
        except ProcessEnded as cause:
            log.warning("template process ended", extra={"reason": str(cause)})
            process, answer = None, InvalidRequest(f"messages: the model's chat template: {cause}", param="messages")
        except (ConfigError, OSError) as cause:
            log.warning("template process not started", extra={"reason": str(cause)})
            answer = ServingError("the router could not start its template process")
        _settle(job.answer, answer)
        return process


def _frame(conversation: Conversation) -> bytes:
    values = {field.name: getattr(conversation, field.name) for field in fields(conversation)}
    try:
        return pack(values)
    except ValueError as cause:
        raise InvalidRequest(f"the conversation cannot be rendered: {cause}") from cause


def _text_or_error(answer: Mapping[str, Any]) -> str | ServingError:
    return InvalidRequest(answer["error"], param=answer["param"]) if "error" in answer else str(answer["text"])


def _settle(waiting: "asyncio.Future[str]", answer: str | ServingError) -> None:
    if waiting.done():
        return
    if isinstance(answer, ServingError):
        waiting.set_exception(answer)
    else:
        waiting.set_result(answer)
