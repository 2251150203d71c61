"""The command `twostep`: Ctrl-C ends it without a traceback from the first moment, while what it is made of is still loaded."""

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C has ended."""


def main() -> int:
    """Load the command line and run it. Returns the exit code."""
    signal.signal(signal.SIGINT, _leave)
    # Loading takes a moment in which an interrupt would be raised in the middle of somebody's import.
    from twostep.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


def _leave(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    os._exit(INTERRUPTED)
