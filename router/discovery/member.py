"""The nodes that exist, as far as somebody outside of them can tell: who they are, where they are, and how sure that is."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from twostep.core.clock import Clock

Role = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the cluster. Two members are the same node when role, id and address (`host:port`) are the same.

    `id` is the name that the node has to give of itself; empty where only its address is known. `host` is the machine it
    runs on and `zone` that machine's; empty when unknown. A node that `is_leaving` finishes what it has and gets no more.
    """

    role: Role
    address: str
    id: str = ""
    zone: str = field(default="", compare=False)
    host: str = field(default="", compare=False)
    is_leaving: bool = field(default=False, compare=False)

    @property
    def place(self) -> tuple[str, str]:
        return self.zone, self.host


class Freshness:
    """How far what a discovery last told can be relied on. `trouble` says why it may be out of date; empty when it is not."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._confirmed_at = clock()
        self.trouble = "nothing has been found out yet"
        self.num_failures = 0

    @property
    def stale_s(self) -> float:
        """For how many seconds nobody has been able to confirm what is known; 0 while nothing is wrong."""
        return self._clock() - self._confirmed_at if self.trouble else 0.0

    def confirm(self) -> None:
        self._confirmed_at, self.trouble = self._clock(), ""

    def doubt(self, trouble: str) -> None:
        self.trouble = trouble
        self.num_failures += 1


class Discovery(Protocol):
    """Finds the nodes. Where it cannot, what was known goes on being true, and `freshness` says so."""

    source: str
    freshness: Freshness

    def changes(self) -> AsyncIterator[Sequence[Member]]:
        """Yield all members, first as soon as they are known and then whenever something has changed, for ever."""
