"""Nodes from a file and from DNS names: what changes, what is kept, and what is said when nothing can be found out."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from twostep.core.errors import ConfigError
from twostep.router.discovery import watched_file
from twostep.router.discovery.config import DnsDiscovery, FileDiscovery
from twostep.router.discovery.dns import Dns, resolve
from twostep.router.discovery.member import Member
from twostep.router.discovery.watched_file import WatchedFile, read_members

OFTEN_S = 0.002


def changes(discovery: Any) -> "aclosing[AsyncIterator[Sequence[Member]]]":  # type: ignore[type-var]
    return aclosing(discovery.changes())


def replace(path: Path, text: str) -> None:
    """Put a new file in the old one's place, as an update of a ConfigMap does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def test_a_file_lists_addresses_or_all_that_is_known_of_a_node(tmp_path: Path) -> None:
    (tmp_path / "nodes.yaml").write_text(
        "prefill: ['p:1']\ndecode: [{address: 'd:2', id: uid, zone: a, host: m, leaving: true}]"
    )
    prefill, decode = read_members(tmp_path / "nodes.yaml")
    assert (prefill, decode) == (Member("prefill", "p:1"), Member("decode", "d:2", id="uid"))
    assert (decode.place, decode.is_leaving) == (("a", "m"), True)


@pytest.mark.parametrize("text", ["prefill: [p]", "prefil: ['p:1']", "prefill: [", "7"])
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "nodes.yaml").write_text(text)
    with pytest.raises(ConfigError):
        read_members(tmp_path / "nodes.yaml")


async def test_a_new_file_is_told_and_a_bad_or_missing_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    watched = WatchedFile(FileDiscovery(path=path, poll_s=OFTEN_S))
    async with changes(watched) as news:
        path.write_text("decode: ['d:1']")
        assert await anext(news) == [Member("decode", "d:1")]
        assert watched.freshness.trouble == ""
        path.unlink()
        told = anext(news)
        replace(path, "decode: ['d:1', 'd:2']")
        assert await told == [Member("decode", "d:1"), Member("decode", "d:2")]
        replace(path, "decode: [{address: 'd:1', leaving: true}, 'd:2']")
        assert [member.is_leaving for member in await anext(news)] == [True, False]


async def test_a_file_that_is_just_being_written_loses_no_node(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    replace(path, "decode: ['d:1', 'd:2']")
    watched = WatchedFile(FileDiscovery(path=path, poll_s=OFTEN_S))
    async with changes(watched) as news:
        assert len(await anext(news)) == 2
        told = asyncio.ensure_future(anext(news))  # type: ignore[arg-type]
        for half_written in ("", "decode: ['d:1',"):
            num_failures = watched.freshness.num_failures
            path.write_text(half_written)
            while watched.freshness.num_failures == num_failures:  # noqa: ASYNC110
                await asyncio.sleep(OFTEN_S)
        assert not told.done()
        replace(path, "decode: ['d:2']")
        assert await told == [Member("decode", "d:2")]


async def test_of_a_changed_file_two_readings_must_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = ([Member("decode", f"d:{number}") for number in range(count)] for count in (1, 2, 3))
    readings = iter([three, three, one, two, two])
    monkeypatch.setattr(watched_file, "read_members", lambda _: next(readings))
    async with changes(WatchedFile(FileDiscovery(path=tmp_path / "nodes.yaml", poll_s=OFTEN_S))) as news:
        assert [await anext(news), await anext(news)] == [three, two]


async def test_trouble_with_the_file_is_said_until_it_is_over(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    replace(path, "decode: [")
    watched = WatchedFile(FileDiscovery(path=path, poll_s=OFTEN_S))
    troubles: list[str] = []
    doubt = watched.freshness.doubt

    def note_and_repair(trouble: str) -> None:
        doubt(trouble)
        troubles.append(watched.freshness.trouble)
        replace(path, "decode: ['d:1']")

    watched.freshness.doubt = note_and_repair  # type: ignore[method-assign]
    async with changes(watched) as news:
        assert await anext(news) == [Member("decode", "d:1")]
    assert len(troubles) == 1
    assert "nodes.yaml: cannot be read" in troubles[0]
    assert (watched.freshness.trouble, watched.freshness.num_failures) == ("", 1)


class Names:
    """A name server that is told what to say; a name it was not told of does not exist."""

    def __init__(self) -> None:
        self.hosts: dict[str, list[str]] = {}
        self.asked = 0

    async def resolve(self, name: str, port: int) -> list[str]:
        self.asked += 1
        if name not in self.hosts:
            raise OSError(-2, "Name or service not known")
        return [f"{host}:{port}" for host in self.hosts[name]]


async def test_every_address_of_a_name_is_a_node() -> None:
    names = Names()
    names.hosts = {"p": ["10.0.0.1"], "d": ["10.0.0.2", "10.0.0.3"]}
    dns = Dns(DnsDiscovery(prefill=("p:1",), decode=("d:2",), refresh_s=OFTEN_S), names.resolve)
    async with changes(dns) as news:
        first = [Member("prefill", "10.0.0.1:1"), Member("decode", "10.0.0.2:2"), Member("decode", "10.0.0.3:2")]
        assert await anext(news) == first
        names.hosts["d"] = ["10.0.0.3"]
        assert await anext(news) == [first[0], first[2]]


async def test_a_name_that_cannot_be_looked_up_keeps_its_nodes_and_says_so() -> None:
    names = Names()
    names.hosts = {"p": ["10.0.0.1"], "d": ["10.0.0.2"]}
    dns = Dns(DnsDiscovery(prefill=("p:1",), decode=("d:2",), refresh_s=OFTEN_S), names.resolve)
    async with changes(dns) as news:
        await anext(news)
        del names.hosts["d"]
        names.hosts["p"] = ["10.0.0.9"]
        assert await anext(news) == [Member("prefill", "10.0.0.9:1"), Member("decode", "10.0.0.2:2")]
        assert dns.freshness.trouble == "d:2: Name or service not known"


async def test_real_names_are_resolved() -> None:
    assert await resolve("127.0.0.1", 5) == ["127.0.0.1:5"]
    assert await resolve("::1", 5) == ["[::1]:5"]
