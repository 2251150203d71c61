"""An operating system's thread that runs only while the world waits for it, so that a turn can be left in its middle.

A step of the model or a copy takes time, in which others act. Such a turn runs on a fiber, which gives the baton back at
each `breathe`; the world resumes it later, or never.
"""

import threading
from collections.abc import Callable
from contextlib import suppress


class Unwound(BaseException):
    """Ends a fiber whose process was killed. Raised only after the world has ended."""


class Fiber:
    def __init__(self) -> None:
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._work: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._is_unwinding = False
        self.is_paused = False
        threading.Thread(target=self._run, name="fiber", daemon=True).start()

    def start(self, work: Callable[[], None]) -> None:
        """Run `work` until it breathes or ends; raises what it raises."""
        self._work = work
        self.resume()

    def resume(self) -> None:
        global _current  # noqa: PLW0603 - one thread at a time: there is one current fiber
        self.is_paused = False
        _current = self
        self._go.release()
        self._back.acquire()
        _current = None
        error, self._error = self._error, None
        if error:
            raise error

    def unwind(self) -> None:
        """End paused work by an exception, so that the thread can be used again."""
        self._is_unwinding = True
        with suppress(Unwound):
            self.resume()
        self._is_unwinding = False

    def pause(self) -> None:
        self.is_paused = True
        self._back.release()
        self._go.acquire()
        if self._is_unwinding:
            raise Unwound

    def _run(self) -> None:
        while True:
            self._go.acquire()
            try:
                assert self._work is not None
                self._work()
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the fiber
                self._error = error
            self._work = None
            self._back.release()


_current: Fiber | None = None
_idle: list[Fiber] = []


def take_fiber() -> Fiber:
    return _idle.pop() if _idle else Fiber()


def give_back(fiber: Fiber) -> None:
    """A fiber serves one turn after the other; one that is left in the middle is unwound first."""
    if fiber.is_paused:
        fiber.unwind()
    _idle.append(fiber)


def breathe() -> None:
    """Let time pass here, if the turn runs on a fiber."""
    if _current is not None:
        _current.pause()
