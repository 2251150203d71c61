"""Nodes that are the addresses of DNS names, such as those of headless Services."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from twostep.core.host_port import join_host_port
from twostep.router.discovery.config import DnsDiscovery
from twostep.router.discovery.member import Freshness, Member, Role

log = logging.getLogger(__name__)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a name, as `host:port`. Raises OSError, also for a name that has none."""


async def resolve(name: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    hosts = sorted({str(address[0]) for _, _, _, _, address in found})
    return [join_host_port(host, port) for host in hosts]


class Dns:
    """A name that cannot be looked up keeps the addresses it had: a name server in trouble looks like a pool of none."""

    source = "dns"

    def __init__(self, config: DnsDiscovery, resolve: Resolve = resolve) -> None:
        self.freshness = Freshness()
        self._names: list[tuple[Role, str]] = [
            *(("prefill", name) for name in config.prefill),
            *(("decode", name) for name in config.decode),
        ]
        self._refresh_s = config.refresh_s
        self._resolve = resolve
        self._known: dict[tuple[Role, str], Sequence[str]] = {}

    async def changes(self) -> AsyncIterator[Sequence[Member]]:
        told: list[Member] | None = None
        while True:
            await self._look_up_all()
            members = [Member(role, address) for (role, _), addresses in self._known.items() for address in addresses]
            if members != told:
                told = members
                yield members
            await asyncio.sleep(self._refresh_s)

    async def _look_up_all(self) -> None:
        troubles = [trouble for name in self._names if (trouble := await self._look_up(*name))]
        if not troubles:
            self.freshness.confirm()
            return
        if "; ".join(troubles) != self.freshness.trouble:
            log.warning("names of nodes cannot be looked up", extra={"reason": "; ".join(troubles)})
        self.freshness.doubt("; ".join(troubles))

    async def _look_up(self, role: Role, name: str) -> str:
        """Note the addresses of one name. Returns what went wrong."""
        host, _, port = name.rpartition(":")
        try:
            self._known[role, name] = await self._resolve(host, int(port))
        except OSError as error:
            return f"{name}: {error.strerror or error}"
        return ""
