import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from twostep.core.errors import NodeUnavailable
from twostep.node.background import Background


async def test_jobs_are_finished_when_the_node_stops() -> None:
    done: list[str] = []

    async def job() -> None:
        await asyncio.sleep(0)
        done.append("job")

    async with Background() as background:
        background.spawn(job())
    assert done == ["job"]


async def test_daemons_are_cancelled_when_the_node_stops() -> None:
    async with Background() as background:
        daemon = background.spawn_daemon(asyncio.Event().wait())
    assert daemon.cancelled()


async def test_a_task_that_fails_fails_the_node_and_cancels_the_others() -> None:
    async def fails() -> None:
        raise ValueError("broken")

    background = Background()
    with pytest.raises(ExceptionGroup) as raised:
        await attend_until_failure(background, fails())
    assert raised.group_contains(ValueError, match="broken")


async def attend_until_failure(background: Background, work: Coroutine[Any, Any, None]) -> None:
    async with background:
        other = background.spawn_daemon(asyncio.Event().wait())
        background.spawn(work)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            assert other.cancelled()


async def test_what_begins_while_the_node_ends_does_not_keep_it() -> None:
    """A router that names its peers to the very end must not begin a handshake that nobody will end."""
    late: list[asyncio.Task[Any]] = []

    async def ends_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            late.append(background.spawn_daemon(asyncio.Event().wait()))
            late.append(background.spawn(asyncio.Event().wait()))

    async with asyncio.timeout(60):
        async with Background() as background:
            background.spawn_daemon(ends_slowly())
            await asyncio.sleep(0)
    assert [task.cancelled() for task in late] == [True, True]


async def test_jobs_that_jobs_have_started_are_waited_for_too() -> None:
    done: list[str] = []

    async def last() -> None:
        await asyncio.sleep(0)
        done.append("last")

    async def first() -> None:
        await asyncio.sleep(0)
        background.spawn(last())

    async with Background() as background:
        background.spawn(first())
        await background.finish()
        assert done == ["last"]


async def test_jobs_that_do_not_end_are_waited_for_a_bounded_time() -> None:
    async with Background() as background:
        job = background.spawn(asyncio.Event().wait())
        await background.finish(within_s=0.01)
        assert not job.done()
        job.cancel()


async def test_nothing_can_be_started_when_the_node_has_stopped() -> None:
    async with Background() as background:
        pass
    with pytest.raises(NodeUnavailable, match="has stopped"):
        background.spawn(asyncio.sleep(0))


async def test_what_is_started_while_the_node_stops_does_not_keep_it() -> None:
    background = Background()

    async def starts_another() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            background.spawn_daemon(asyncio.Event().wait())

    async with asyncio.timeout(60):
        async with background:
            background.spawn_daemon(starts_another())
            await asyncio.sleep(0)
