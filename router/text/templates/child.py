"""One template process, as the router holds it: started, asked one thing at a time, ended."""

import asyncio
import signal
import sys
from typing import Any, Self

from twostep.core.child_process import send_signal
from twostep.core.errors import ConfigError
from twostep.router.text.templates.folder import TemplateSet
from twostep.router.text.templates.frames import pack, read_frame

ANSWER_S = 10.0
END_S = 2.0
# Without -P the directory that the router was started in could put other modules in front of ours.
COMMAND = (sys.executable, "-P", "-m", "twostep.router.text.templates.process")


class ProcessEnded(Exception):
    """The process has not answered and is no more. The message says why."""


class TemplateProcess:
    def __init__(self, process: asyncio.subprocess.Process, processor_time_s: float) -> None:
        self._process = process
        self._processor_time_s = processor_time_s

    @classmethod
    async def start(cls, templates: TemplateSet, *, processor_time_s: float) -> Self:
        """Return a process that has compiled the templates and gives each answer, this too, so much processor time.

        Raises ConfigError when it cannot compile them.
        """
        # In a session of its own Ctrl-C does not reach it: it ends when the router closes its pipe, or is no more.
        pipe = asyncio.subprocess.PIPE
        started = await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe, start_new_session=True)
        process = cls(started, processor_time_s)
        set_up = {
            "sources": templates.sources,
            "special_tokens": templates.special_tokens,
            "processor_time_s": processor_time_s,
        }
        try:
            answer = await process.ask(pack(set_up))
        except ProcessEnded as cause:
            raise ConfigError(f"{templates.origin}: the chat template cannot be used: {cause}") from cause
        if "error" in answer:
            await process.end()
            raise ConfigError(f"{templates.origin}: {answer['error']}")
        return process

    async def ask(self, frame: bytes) -> dict[str, Any]:
        """Return the answer to one frame. Raises ProcessEnded, after which there is no process any more; nor is there when
        it is cancelled: the next answer would be to this frame.
        """
        stdin, stdout = self._pipes()
        try:
            async with asyncio.timeout(ANSWER_S):
                stdin.write(frame)
                await stdin.drain()
                return await read_frame(stdout)
        except TimeoutError as cause:
            await self.end()
            raise ProcessEnded(f"it did not end in {ANSWER_S:g} s") from cause
        except (EOFError, ConnectionError) as cause:
            raise ProcessEnded(self._why(await self.end())) from cause
        except asyncio.CancelledError:
            await self.end()
            raise

    async def end(self) -> int:
        """End the process and return how it ended; a negative number is a signal's."""
        stdin, _ = self._pipes()
        stdin.close()
        try:
            async with asyncio.timeout(END_S):
                return await self._process.wait()
        except TimeoutError:
            send_signal(self._process, signal.SIGKILL)
            return await self._process.wait()

    def _pipes(self) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the template process was started without pipes")
        return self._process.stdin, self._process.stdout

    def _why(self, code: int) -> str:
        if code == -signal.SIGPROF:
            return f"it did not end in {self._processor_time_s:g} s of processor time"
        return f"its process ended with code {code}"
