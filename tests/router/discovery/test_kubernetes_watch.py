"""How the watch of EndpointSlices goes on: after a drop, an expired version, a refusal, an API server that is away."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from twostep.kube.errors import ApiError
from twostep.router.discovery.config import KubernetesDiscovery
from twostep.router.discovery.endpoint_slices import Slice
from twostep.router.discovery.kubernetes_watch import (
    LONGEST_PAUSE_S,
    Events,
    KubernetesWatch,
    backoff_s,
)
from twostep.router.discovery.member import Member
from twostep.tests.router.discovery.slices import endpoint, endpoint_slice

Watched = list[tuple[str, dict[str, Any]] | ApiError]


class ScriptedApi:
    """Answers lists and watches in turn. A watch is a list of events, closed after the last; an error stands for a refusal."""

    def __init__(self, lists: Sequence[Any], watches: Sequence[Watched | ApiError]) -> None:
        self._lists, self._watches = list(lists), list(watches)
        self.asked: list[str] = []

    async def list_slices(self) -> tuple[Sequence[Slice], str]:
        self.asked.append("list")
        answer = self._lists.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        slices, version = answer
        return slices, version

    @asynccontextmanager
    async def watch(self, version: str) -> AsyncIterator[Events]:
        self.asked.append(f"watch {version}")
        if not self._watches:
            await asyncio.get_running_loop().create_future()
        answer = self._watches.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        yield self._events(answer)

    async def _events(self, events: Watched) -> AsyncIterator[tuple[str, Slice]]:
        for event in events:
            if isinstance(event, ApiError):
                raise event
            yield event


def decode_slice(*uids: str, version: int) -> dict[str, Any]:
    return endpoint_slice("d", "decode", [endpoint(f"10.0.0.{uid}", uid) for uid in uids], version=version)


def bookmark(version: int) -> tuple[str, dict[str, Any]]:
    return "BOOKMARK", {"kind": "EndpointSlice", "metadata": {"resourceVersion": str(version)}}


class Watching:
    """A watch of a scripted API server, its pauses, and a clock that goes on by every pause."""

    def __init__(self, api: ScriptedApi, *, resync_s: float = 600.0) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.during_pause: Callable[[], None] = lambda: None

        @asynccontextmanager
        async def open_api(_: KubernetesDiscovery) -> AsyncIterator[ScriptedApi]:
            yield api

        config = KubernetesDiscovery(namespace="prod", resync_s=resync_s)
        self.watch = KubernetesWatch(config, open_api, clock=lambda: self.now, pause=self._pause)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        self.during_pause()

    async def uids(self, num_changes: int) -> list[list[str]]:
        """Return the ids of the members after each of the next changes."""
        async with asyncio.timeout(60), aclosing(self.watch.changes()) as news:  # type: ignore[type-var]
            return [_ids(await anext(news)) for _ in range(num_changes)]


def _ids(members: Sequence[Member]) -> list[str]:
    return [member.id for member in members]


async def test_a_list_is_followed_by_a_watch_from_its_version() -> None:
    api = ScriptedApi([([decode_slice("1", version=4)], "7")], [[("MODIFIED", decode_slice("1", "2", version=8))]])
    assert await Watching(api).uids(2) == [["1"], ["1", "2"]]
    assert api.asked == ["list", "watch 7"]


async def test_a_watch_that_is_dropped_goes_on_from_the_last_event_or_bookmark_without_a_list() -> None:
    api = ScriptedApi(
        [([decode_slice("1", version=4)], "7")],
        [
            [("MODIFIED", decode_slice("2", version=8))],
            [bookmark(90)],
            [ApiError("connection reset")],
            [("MODIFIED", decode_slice("3", version=91))],
        ],
    )
    watching = Watching(api)
    assert await watching.uids(3) == [["1"], ["2"], ["3"]]
    assert api.asked == ["list", "watch 7", "watch 8", "watch 90", "watch 90"]
    assert watching.watch.freshness.num_failures == 1


async def test_an_expired_version_leads_to_a_new_list_and_is_no_trouble() -> None:
    gone = ApiError("too old resource version", status=410)
    in_mid_stream: Watched = [("MODIFIED", decode_slice("2", version=8)), gone]
    api = ScriptedApi([([decode_slice(uid, version=4)], "7") for uid in ("1", "3", "4")], [gone, in_mid_stream])
    watching = Watching(api)
    assert await watching.uids(4) == [["1"], ["3"], ["2"], ["4"]]
    assert api.asked == ["list", "watch 7", "list", "watch 7", "list"]
    assert (watching.watch.freshness.trouble, watching.watch.freshness.num_failures) == ("", 0)


async def test_while_the_api_server_is_away_everything_known_is_kept_and_the_trouble_is_said() -> None:
    away = ApiError("the API server cannot be reached")
    api = ScriptedApi([([decode_slice("1", version=4)], "7")], [away, away, away, [("MODIFIED", decode_slice("2", version=8))]])
    watching = Watching(api)
    said: list[tuple[str, bool]] = []
    watching.during_pause = lambda: said.append((watching.watch.freshness.trouble, watching.watch.freshness.stale_s > 0))
    assert await watching.uids(2) == [["1"], ["2"]]
    assert said == [("the API server cannot be reached", True)] * 3
    assert watching.watch.freshness.trouble == ""
    assert api.asked == ["list", *["watch 7"] * 4]


async def test_pauses_grow_while_everything_fails_and_are_never_equal_or_endless() -> None:
    api = ScriptedApi([ApiError("refused")] * 12 + [([], "1")], [])
    watching = Watching(api)
    assert await watching.uids(1) == [[]]
    assert watching.pauses[0] <= 0.2
    assert all(pause <= LONGEST_PAUSE_S for pause in watching.pauses)
    assert watching.pauses[-1] >= LONGEST_PAUSE_S / 2
    assert len(set(watching.pauses)) == len(watching.pauses)
    assert backoff_s(10_000) <= LONGEST_PAUSE_S


async def test_a_server_that_is_overloaded_is_left_alone_for_as_long_as_it_asks() -> None:
    api = ScriptedApi([ApiError("slow down", status=429, retry_after_s=17.0), ([], "1")], [])
    watching = Watching(api)
    await watching.uids(1)
    assert watching.pauses == [17.0]


async def test_a_watch_that_is_closed_at_once_again_and_again_is_not_a_busy_loop() -> None:
    api = ScriptedApi([([], "1")], [[], [], [], [("ADDED", decode_slice("1", version=2))]])
    watching = Watching(api)
    await watching.uids(2)
    assert len(watching.pauses) == 3
    assert watching.watch.freshness.num_failures == 0


async def test_everything_is_listed_anew_now_and_then_so_that_a_missed_change_is_not_missed_for_ever() -> None:
    api = ScriptedApi([([decode_slice("1", version=1)], "1"), ([decode_slice("2", version=5)], "9")], [[]])
    watching = Watching(api, resync_s=0.05)
    assert await watching.uids(2) == [["1"], ["2"]]
    assert api.asked == ["list", "watch 1", "list"]
