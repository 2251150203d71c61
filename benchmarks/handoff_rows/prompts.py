"""Prompts that no prefix cache knows."""

import random

LOWEST, HIGHEST = 20, 120
"""Token ids that are ordinary text in SmolLM2's vocabulary and in the fake model's."""


class Prompts:
    """Draws prompts at random, by seed."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def draw(self, num_tokens: int) -> list[int]:
        return self._random.choices(range(LOWEST, HIGHEST + 1), k=num_tokens)
