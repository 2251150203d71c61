"""`python -m twostep.router`: the OpenAI-compatible front of a cluster of prefill and decode nodes."""

import asyncio
from importlib import import_module

from twostep.core.interpreter import take_short_turns
from twostep.core.program import run_program
from twostep.router.config import RouterConfig


async def run(config: RouterConfig, stop: asyncio.Event) -> None:
    """Serve until `stop`. Raises ConfigError, and SystemExit when workers have not ended well."""
    if config.workers == 1:
        await import_module("twostep.router.serve").serve(config, stop)
    else:
        # Who only looks after workers loads little of what they load.
        await import_module("twostep.router.workers.supervise").supervise(config, stop)


if __name__ == "__main__":
    # Long prompts are tokenized on a thread.
    take_short_turns()
    raise SystemExit(run_program("twostep.router", __doc__ or "", RouterConfig, run))
