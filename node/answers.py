"""Remembers the answers that were given, so that a repeated message gets the same one; bounded, oldest first out."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Answers(Generic[K, V]):
    """At most `capacity` answers."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._answers: OrderedDict[K, V] = OrderedDict()

    def record(self, key: K, answer: V) -> None:
        """Keep `answer`; the first one recorded for a key stands."""
        self._answers.setdefault(key, answer)
        if len(self._answers) > self._capacity:
            self._answers.popitem(last=False)

    def find(self, key: K) -> V | None:
        return self._answers.get(key)

    def __len__(self) -> int:
        return len(self._answers)
