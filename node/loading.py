"""Stands in for a node whose model still loads: the process listens and answers before it can serve."""

from typing import Generic, TypeVar

from twostep.core.errors import NodeUnavailable

T = TypeVar("T")


class Loading(Generic[T]):
    """Something that will be there later."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self._value: T | None = None

    @property
    def value(self) -> T | None:
        return self._value

    def tell(self, reason: str) -> None:
        """Say what is being loaded now. May be called from any thread."""
        self.reason = reason

    def put(self, value: T) -> None:
        self._value = value

    def get(self) -> T:
        """Return the value. Raises NodeUnavailable while it is not there."""
        if self._value is None:
            raise NodeUnavailable(f"this node cannot serve yet: {self.reason}")
        return self._value
