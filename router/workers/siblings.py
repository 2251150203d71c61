"""Asks workers of one program, over sockets in a folder that only its user can enter, for what each tells of itself."""

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import httpx

from twostep.core.errors import ConfigError

ASK_S = 1.0
LONGEST_ADDRESS = 107
"""The bytes that Linux takes for the path of a Unix socket."""


class Siblings:
    """The workers that listen in `folder`, but for the one called `number`."""

    def __init__(self, folder: Path, number: int | None = None) -> None:
        # It would have a line for every page.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._folder = folder
        self._number = number

    def socket_of(self, number: int) -> Path:
        """Return where the worker of that number listens for the others. Raises ConfigError when no socket can be there."""
        path = self._folder / f"{number}.sock"
        if len(os.fsencode(path)) > LONGEST_ADDRESS:
            raise ConfigError(
                f"TMPDIR: workers need Unix sockets in a temporary folder, whose paths have at most {LONGEST_ADDRESS} bytes; "
                f"{path} has {len(os.fsencode(path))}"
            )
        return path

    async def ask_all(self, path: str) -> Mapping[int, httpx.Response | None]:
        """Return each worker's answer, by its number: None where it did not answer in time. Who is not there is left out."""
        numbers = sorted({int(socket.stem) for socket in self._folder.glob("*.sock")} - {self._number})
        answers = await asyncio.gather(*(self.ask(number, path) for number in numbers))
        return {number: answer for found in answers for number, answer in found.items()}

    async def ask(self, number: int, path: str, *, within_s: float = ASK_S) -> Mapping[int, httpx.Response | None]:
        """The same, of one worker."""
        # Without authorities to check certificates by, of which there are none here: to load them takes tens of milliseconds.
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket_of(number)), verify=False)
        url = "http://worker"
        async with httpx.AsyncClient(transport=transport, base_url=url, timeout=within_s, trust_env=False) as http:
            try:
                return {number: await http.get(path)}
            except httpx.TimeoutException:
                return {number: None}
            except httpx.TransportError:
                return {}
