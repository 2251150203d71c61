"""Nodes that a file lists, which may be written anew at any time, in place or by a rename."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from twostep.core.config import config, load
from twostep.core.errors import ConfigError
from twostep.router.address import require_host_and_port
from twostep.router.discovery.config import FileDiscovery
from twostep.router.discovery.member import Freshness, Member, Role

log = logging.getLogger(__name__)


@config
class ListedNode:
    address: str
    id: str = ""
    zone: str = ""
    host: str = ""
    leaving: bool = False


@config
class NodeList:
    """What the file says."""

    prefill: tuple[ListedNode | str, ...] = ()
    decode: tuple[ListedNode | str, ...] = ()


class WatchedFile:
    """A file that cannot be read, or makes no sense, changes nothing; nor does one that is just being written."""

    source = "file"

    def __init__(self, config: FileDiscovery) -> None:
        self.freshness = Freshness()
        self._path = config.path
        self._poll_s = config.poll_s

    async def changes(self) -> AsyncIterator[Sequence[Member]]:
        known: list[Member] | None = None
        while True:
            try:
                found = await self._read(known)
            except ConfigError as error:
                self._doubt(str(error))
            else:
                self.freshness.confirm()
                if known is None or _differ(known, found):
                    known = found
                    yield found
            await asyncio.sleep(self._poll_s)

    async def _read(self, known: Sequence[Member] | None) -> list[Member]:
        """Return what the file says; of a file that was changed, once two readings in a row agree."""
        before, found = known, await asyncio.to_thread(read_members, self._path)
        while before is not None and _differ(before, found):
            await asyncio.sleep(self._poll_s)
            before, found = found, await asyncio.to_thread(read_members, self._path)
        return found

    def _doubt(self, trouble: str) -> None:
        if trouble != self.freshness.trouble:
            log.warning("the list of nodes cannot be read", extra={"reason": trouble})
        self.freshness.doubt(trouble)


def read_members(path: Path) -> list[Member]:
    """Raises ConfigError when the file cannot be read, makes no sense, or is empty: it may be about to be written."""
    if path.exists() and not path.stat().st_size:
        raise ConfigError(f"{path} is empty: a cluster without nodes is written as {{}}")
    listed = load(NodeList, path)
    return [*_members("prefill", listed.prefill), *_members("decode", listed.decode)]


def _members(role: Role, nodes: Sequence[ListedNode | str]) -> list[Member]:
    return [_member(role, ListedNode(address=node) if isinstance(node, str) else node) for node in nodes]


def _member(role: Role, node: ListedNode) -> Member:
    require_host_and_port(node.address)
    return Member(role, node.address, id=node.id, zone=node.zone, host=node.host, is_leaving=node.leaving)


def _differ(one: Sequence[Member], other: Sequence[Member]) -> bool:
    return [_all_fields(member) for member in one] != [_all_fields(member) for member in other]


def _all_fields(member: Member) -> tuple[object, ...]:
    return member.role, member.address, member.id, member.zone, member.host, member.is_leaving
