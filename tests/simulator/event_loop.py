"""An asyncio event loop without a selector: its time is the world's, its callbacks are the world's events."""

import asyncio
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twostep.tests.simulator.process import Process

_serial = 0


def _next_serial() -> int:
    global _serial  # noqa: PLW0603 - one counter for all that a world makes
    _serial += 1
    return _serial


class SimTask(asyncio.Task[Any]):
    """Hashed by a number: the order of a set of tasks must not depend on their addresses."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._serial = _next_serial()
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._serial


class SimFuture(asyncio.Future[Any]):
    def __init__(self, *args: Any, **options: Any) -> None:
        self._serial = _next_serial()
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._serial


class SimLoop(asyncio.AbstractEventLoop):
    """One process's loop. Tasks are kept until they are done: those of a process that was killed never run again."""

    def __init__(self, process: "Process") -> None:
        self.process = process
        self.tasks: set[SimTask] = set()
        self._failed: list[SimTask] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._is_scheduled = False

    def time(self) -> float:
        return self.process.clock()

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.process.is_dead:
            self._ready.append(handle)
            self._schedule()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.process.is_dead:
            self.process.at(when, lambda: self._ring(handle))
        return handle

    def create_future(self) -> SimFuture:
        return SimFuture(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> SimTask:
        task = SimTask(coro, loop=self, name=name or "task", context=context)
        self.tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def unheard_failures(self) -> list[BaseException]:
        """Return the exceptions of tasks that nobody has asked for their result."""
        failed = [task for task in self._failed if task._log_traceback]  # type: ignore[attr-defined]
        return [error for task in failed if (error := task.exception())]

    def _forget(self, task: asyncio.Task[Any]) -> None:
        assert isinstance(task, SimTask)
        self.tasks.discard(task)
        if task._exception is not None:  # type: ignore[attr-defined]
            self._failed.append(task)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.wrap_future(self.process.threads.call("executor", lambda: func(*args)), loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nothing may end here: an exception that nobody took is a defect."""
        if not self.process.is_dead:
            error = context.get("exception")
            self.process.world.violate(
                "no unexpected exception", f"{self.process.name}: {context.get('message')}: {error!r}{origin(error)}"
            )

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.process.is_dead

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer passes silently."""

    def _ring(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.process.after(self.process.hesitation(), self._iterate)

    def _iterate(self) -> None:
        self._is_scheduled = False
        ready, process = self._ready, self.process
        _set_running_loop(self)
        try:
            for _ in range(len(ready)):
                if process.is_dead:
                    return
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            _set_running_loop(None)
        if ready:
            self._schedule()


def origin(error: BaseException | None) -> str:
    """Return where an exception was raised: the innermost line of ours."""
    trace = error.__traceback__ if error else None
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/site-packages/" not in code.co_filename:
            places.append(f"{code.co_filename.rsplit('/', 2)[-1]}:{trace.tb_lineno}")
        trace = trace.tb_next
    nested = [origin(one) for one in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    return (f" at {' > '.join(places[-4:])}" if places else "") + "".join(nested)


__all__ = ["SimFuture", "SimLoop", "SimTask", "origin"]
