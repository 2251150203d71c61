"""Measures from a node's steps how fast it computes prompts and decodes: what routers place by."""

from dataclasses import dataclass, field

from twostep.core.pace import PrefillMeter, StepMeter
from twostep.engine.engine import StepResult


@dataclass(slots=True)
class PaceMeter:
    """Fed by the control thread. Of a step that does both, the prompts took what is beyond a step that only decodes."""

    prefill: PrefillMeter = field(default_factory=PrefillMeter)
    step: StepMeter = field(default_factory=StepMeter)

    def take(self, result: StepResult) -> None:
        """Take up one step."""
        prompts = [chunk for chunk in result.batch.chunks if len(chunk.tokens) > 1]
        num_decodes = len(result.batch.chunks) - len(prompts)
        if not prompts:
            self.step.record(num_decodes, result.record.duration_s)
            return
        pace = self.step.pace if num_decodes else None
        seconds = max(0.0, result.record.duration_s - (pace.step_s(num_decodes) if pace else 0.0))
        num_tokens = sum(len(chunk.tokens) for chunk in prompts)
        for chunk in prompts:
            self.prefill.record(chunk.start, chunk.end, seconds * len(chunk.tokens) / num_tokens)
