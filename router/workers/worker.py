"""`python -m twostep.router.workers.worker`: one of the processes that share a router's ports, started by the program."""

import asyncio
from pathlib import Path

from twostep.core.config import config
from twostep.core.interpreter import take_short_turns
from twostep.core.logging import sign_lines
from twostep.core.program import run_program
from twostep.router.config import RouterConfig
from twostep.router.serve import serve
from twostep.router.workers.multi_worker import MultiWorker
from twostep.router.workers.siblings import Siblings


@config
class WorkerConfig:
    """What the program tells a worker: its number, how many times it has been started, and where the others are."""

    router: RouterConfig
    number: int
    num_starts: int
    folder: Path


async def work(config: WorkerConfig, stop: asyncio.Event) -> None:
    """Serve until `stop`. Raises ConfigError."""
    sign_lines(worker=config.number)
    group = MultiWorker(Siblings(config.folder, config.number), config.number, config.num_starts)
    await serve(config.router, stop, group)


if __name__ == "__main__":
    take_short_turns()
    raise SystemExit(run_program("twostep.router", __doc__ or "", WorkerConfig, work))
