"""Defects put into the real code on purpose: each breaks one promise, and the simulator has to notice."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

Patch = AbstractContextManager[None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`seed` is one that is known to kill it."""

    name: str
    breaks: str
    apply: Any
    seed: int


MUTANTS: list[Mutant] = []


def mutated(name: str) -> Patch:
    """Apply the mutant of that name for the block; none for an empty one."""
    if not name:
        return nullcontext()
    patch: Patch = next(mutant for mutant in MUTANTS if mutant.name == name).apply()
    return patch


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    saved = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, saved)
