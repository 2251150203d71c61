"""Measures what a request takes on a decode node; its bill is made of that."""

from dataclasses import dataclass

from twostep.core.bill import DecodeBill
from twostep.engine.batch import Chunk


@dataclass(slots=True)
class BillMeter:
    """Moments by this node's clock, None while they have not come, and counts."""

    arrived_at: float
    granted_at: float | None = None
    done_at: float | None = None
    started_at: float | None = None
    """When the engine took over: attached, or started alone."""
    stepped_at: float | None = None
    """When the first token after that came."""
    num_steps: int = 0
    cached_tokens: int = 0
    computed_prompt_tokens: int = 0
    bytes_landed: int = 0

    def step(self, chunk: Chunk, num_prompt_tokens: int) -> None:
        """Count one engine step of this request."""
        self.num_steps += 1
        self.computed_prompt_tokens += max(0, min(chunk.end, num_prompt_tokens) - chunk.start)

    def bill(self, now: float) -> DecodeBill:
        """Return the bill of a request that ends now; a phase that never came took no time."""
        return DecodeBill(
            queue_s=_between(self.arrived_at, self.granted_at, now),
            attach_s=_between(self.done_at, self.started_at, now),
            first_step_s=_between(self.started_at, self.stepped_at, now),
            decode_s=_between(self.started_at, None, now),
            num_steps=self.num_steps,
            cached_tokens=self.cached_tokens,
            computed_prompt_tokens=self.computed_prompt_tokens,
            bytes_landed=self.bytes_landed,
        )


def _between(start: float | None, end: float | None, now: float) -> float:
    return 0.0 if start is None else (now if end is None else end) - start
