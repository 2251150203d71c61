"""Who else serves at a router's ports: nobody, or the other workers of its program."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from twostep.router.address import tell_addresses
from twostep.router.front.http.state_pages import StatePages
from twostep.router.front.readiness import Readiness


class WorkerGroup(Protocol):
    """What a router does for the others, and they for it."""

    @property
    def is_shared(self) -> bool:
        """Whether others serve at the same ports."""

    @property
    def num_starts(self) -> int:
        """How many times this router has been started by its program, this time included."""

    def pages(self, own: StatePages, /) -> StatePages:
        """Return what clients are told who ask how the router is."""

    def telling(self, own: StatePages, /) -> AbstractAsyncContextManager[None]:
        """Tell the others how this router is, during the block."""

    async def until_needed(self, readiness: Readiness, stop: asyncio.Event) -> None:
        """Wait a while if others can serve and this router cannot yet, unless `stop` is set."""

    def opened(self, addresses: Mapping[str, str]) -> None:
        """The router takes connections at `addresses`, by protocol. Raises ConfigError when that cannot be told."""


class SingleWorker:
    """The WorkerGroup of a router that serves by itself."""

    is_shared = False
    num_starts = 1

    def __init__(self, address_file: Path | None) -> None:
        self._address_file = address_file

    def pages(self, own: StatePages) -> StatePages:
        return own

    def telling(self, _: StatePages) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def until_needed(self, readiness: Readiness, stop: asyncio.Event) -> None:
        pass

    def opened(self, addresses: Mapping[str, str]) -> None:
        tell_addresses(addresses, self._address_file)
