"""`python -m twostep.router`: the OpenAI-compatible front of a cluster of prefill and decode nodes."""

from twostep.core.interpreter import take_short_turns
from twostep.core.program import run_program
from twostep.router.config import RouterConfig
from twostep.router.serve import serve

if __name__ == "__main__":
    # Long prompts are tokenized on a thread.
    take_short_turns()
    raise SystemExit(run_program("twostep.router", __doc__ or "", RouterConfig, serve))
