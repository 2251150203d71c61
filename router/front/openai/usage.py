"""What one answer is counted as: its tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer. `cached_tokens` is the part of the prompt that nobody had to compute."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum over the choices of one reply."""
    counts = [(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) for usage in usages]
    prompt, completion, cached = map(sum, zip(*counts, strict=True))
    return Usage(prompt, completion, cached)
