"""Signals to child processes of the event loop."""

import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress


def send_signal(process: Process, signum: signal.Signals) -> None:
    """Send a signal to a process, unless it is known to have ended.

    asyncio's own way looks first whether it has, and takes the exit code of one that has just ended from who waits for it.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signum)
