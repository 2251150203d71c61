"""What a reply consists of, whichever endpoint it comes from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from twostep.router.bill import Bill
from twostep.router.front.openai.event import Json, TextEvent
from twostep.router.front.openai.usage import Usage


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished answer of a reply. `bill` is set when it was asked for."""

    index: int
    text: str
    finish: str
    bill: Bill | None

    def billed(self) -> Json:
        return {"bill": self.bill.as_json()} if self.bill else {}


class ReplyWriter(Protocol):
    """Writes the pieces of one reply, which share id, model and time of creation."""

    def opening(self, index: int, echo: str) -> bytes:
        """Return what comes before a choice's first text: empty when nothing does. `echo` is prompt text to repeat."""

    def texts(self, index: int) -> TextEvent:
        """Return the event that a choice's texts are filled into."""

    def finish(self, choice: Choice) -> bytes:
        """Return the choice's last event; its text has been written."""

    def usage(self, usage: Usage) -> bytes: ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> Json: ...
