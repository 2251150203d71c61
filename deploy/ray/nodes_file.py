"""Keeps a file with the nodes that Serve runs, from which a router's `discovery.file` learns of them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from ray.exceptions import ActorDiedError
from ray.serve.exceptions import DeploymentUnavailableError

from twostep.core.address_file import write_address_file
from twostep.deploy.ray.config import Role

log = logging.getLogger("ray.serve")

Member = dict[str, str]
Ask = Callable[[], Awaitable[Sequence[Member | BaseException]]]
"""Asks every running replica of a deployment how its node is found. An empty answer says that the node has died, an exception
stands for a replica that did not answer."""


class NodesFile:
    """Nodes that have died, or whose replicas Serve no longer runs, leave the file.

    While a replica does not answer, all that were known stay: it may be any of them, and a pool in trouble looks like none.
    """

    def __init__(self, path: Path, pools: Mapping[Role, Ask]) -> None:
        self._path = path
        self._pools = pools
        self._known: dict[Role, list[Member]] = {role: [] for role in pools}
        self._troubles: dict[Role, str] = dict.fromkeys(pools, "")

    async def look(self) -> None:
        """Ask all pools, and write the file."""
        for role, ask in self._pools.items():
            self._known[role] = await self._members(role, ask)
        write_address_file(self._path, {str(role): members for role, members in self._known.items()})

    async def keep(self, every_s: float) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(every_s)

    async def _members(self, role: Role, ask: Ask) -> list[Member]:
        try:
            answers = await ask()
        except DeploymentUnavailableError:
            return []
        except TimeoutError as error:
            answers = [error]
        found = [answer for answer in answers if answer and not isinstance(answer, BaseException)]
        silent = [answer for answer in answers if isinstance(answer, BaseException) and not isinstance(answer, ActorDiedError)]
        self._tell(role, str(silent[0]) if silent else "")
        return [*found, *(member for member in self._known[role] if silent and member not in found)]

    def _tell(self, role: Role, trouble: str) -> None:
        """Say what is wrong with a pool once, for as long as it is the same."""
        if trouble and trouble != self._troubles[role]:
            log.warning(f"a node does not say where it is: {role}: {trouble}")
        self._troubles[role] = trouble
