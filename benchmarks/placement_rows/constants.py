"""What the simulated nodes of a replay are like: a 70B model on a node of several GPUs, roughly. Printed with every run."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """Seconds of one engine step, and what a node has room for."""

    steps_at_once: int = 4
    """One simulated step stands for so many: it takes as long, computes as many prompt tokens and draws as many tokens."""
    step_s: float = 0.020
    """A step that does next to nothing: the weights are read."""
    prompt_token_s: float = 1.0e-4
    attended_pair_s: float = 2.0e-9
    """For each prompt token and each token before it."""
    sequence_s: float = 2.0e-4
    """For each answer in the step."""
    context_token_s: float = 4.0e-8
    """For each token of their contexts: the KV is read."""
    num_blocks: int = 4096
    block_tokens: int = 512
    token_budget: int = 2048
    max_batch: int = 256
    token_bytes: int = 320 << 10
    path_bytes_per_s: float = 25e9
    handoff_s: float = 0.005
    """What a handoff takes beside its bytes."""
    beat_s: float = 2.0

    def as_text(self) -> str:
        return "simulated nodes: " + ", ".join(f"{name} {value:g}" for name, value in asdict(self).items())


CONSTANTS = Constants()
