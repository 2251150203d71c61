"""Keeps a process that runs to a core, its threads included."""

import os
from pathlib import Path


def keep_to(core: int, process: int) -> None:
    for thread in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
