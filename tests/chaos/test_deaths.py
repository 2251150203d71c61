"""With 16 streams running each program is killed, or frozen and thawed, and started again at the same address."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from twostep.tests.chaos.plan import SLOW, Plan, Settings
from twostep.tests.chaos.programs import Program
from twostep.tests.chaos.questions import crowd
from twostep.tests.chaos.streams import Stream, all_over, heard, one_heard
from twostep.tests.chaos.town import Town, require_right, town

pytestmark = pytest.mark.processes
DRAIN_S = 40.0
WHOLE: Settings = {}
RING: Settings = {"landing_bytes": 24 * (16 << 10), "landing_share": 0.1}
"""A prompt of three blocks passes through two slots."""

Fate = Callable[[Program, list[Stream]], Awaitable[None]]


async def killed(victim: Program, streams: list[Stream]) -> None:
    await victim.kill()
    await victim.restart()


async def told_to_stop(victim: Program, streams: list[Stream]) -> None:
    victim.ask_to_stop()
    assert await victim.ended(within_s=DRAIN_S) == 0
    await victim.restart()


async def frozen_for_a_moment(victim: Program, streams: list[Stream]) -> None:
    """Frozen until those who need nothing of it are well ahead."""
    victim.freeze()
    await one_heard(streams, 30)
    victim.thaw()


async def frozen(victim: Program, streams: list[Stream]) -> None:
    """Frozen until all streams have gone on without it."""
    victim.freeze()
    await all_over(streams)
    victim.thaw()


async def befalls(here: Town, victim: Program, fate: Fate, *, after_tokens: int = 3) -> None:
    """Let `fate` befall `victim` while streams run; all of them end as if nothing had, and nothing is held after."""
    async with here.asking(crowd(f"{victim.name} {fate.__name__} {after_tokens}")) as streams:
        await heard(streams[0], after_tokens)
        await fate(victim, streams)
    await here.is_well(streams)


async def test_every_stream_goes_on_when_a_node_is_killed_or_frozen(tmp_path: Path) -> None:
    async with town(Plan(tmp_path, nodes=SLOW)) as here:
        for victim in (here.prefill[0], here.decode[0]):
            for fate in (killed, frozen):
                await befalls(here, victim, fate)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("landing", [WHOLE, RING], ids=["whole", "ring"])
@pytest.mark.parametrize("after_tokens", [0, 1, 20])
async def test_whatever_befalls_whichever_node_every_stream_goes_on(
    after_tokens: int, landing: Settings, tmp_path: Path
) -> None:
    async with town(Plan(tmp_path, nodes=SLOW, roles={"decode": landing})) as here:
        for victim in here.nodes:
            for fate in (killed, told_to_stop, frozen_for_a_moment, frozen):
                await befalls(here, victim, fate, after_tokens=after_tokens)


async def test_the_death_of_a_router_ends_its_own_streams_only(tmp_path: Path) -> None:
    async with town(Plan(tmp_path, num_routers=2)) as here:
        # Long enough that none of them is over, nor on its way to the client as a whole, when the router dies.
        mine = [replace(question, max_tokens=400) for question in crowd("mine")[::2]]
        other = crowd("other")[1::2]
        async with here.asking(mine) as orphans, here.asking(other, router=1) as others:
            await heard(orphans[-1], 3)
            await here.routers[0].kill()
            await all_over(others)
            require_right(others)
            await here.at_baseline()
        assert all(stream.broken and stream.is_true_so_far for stream in orphans)
        await here.routers[0].restart()
        await here.settled()
        await here.answers_rightly(crowd("restarted"))


async def test_streams_of_a_router_that_was_frozen_for_more_than_its_lease_go_on(tmp_path: Path) -> None:
    async with town(Plan(tmp_path)) as here:
        async with here.asking(crowd("frozen")) as streams:
            await heard(streams[-1], 3)
            here.routers[0].freeze()
            await here.at_baseline()
            here.routers[0].thaw()
        await here.is_well(streams)
