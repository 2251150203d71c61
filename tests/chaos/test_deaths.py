"""With 16 streams running each program is killed, or frozen and thawed, and started again at the same address."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from twostep.tests.chaos.programs import Program
from twostep.tests.chaos.questions import Question, Stream
from twostep.tests.chaos.town import Town, heard, one_heard, over, town

pytestmark = pytest.mark.processes
NUM_STREAMS = 16
DRAIN_S = 40.0
SLOW = {"model": "fake:vocab_size=128,step_s=0.005,token_s=0.001"}
"""A prompt of 100 tokens takes 0.1 s: while the first streams are decoding, the last are in prefill."""

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
    for stream in streams:
        await over(stream)
    victim.thaw()


def questions(salt: str) -> list[Question]:
    return [Question(number, num_prompt=80, max_tokens=60, salt=salt) for number in range(NUM_STREAMS)]


async def befalls(here: Town, victim: Program, fate: Fate, *, after_tokens: int = 3) -> None:
    """Let `fate` befall `victim` while streams run; all of them end as if nothing had, and nothing is held after."""
    async with here.asking(questions(f"{victim.name} {fate.__name__} {after_tokens}")) as streams:
        await heard(streams[0], after_tokens)
        await fate(victim, streams)
    assert all(stream.is_right for stream in streams), (victim.name, fate, [s for s in streams if not s.is_right])
    await here.settled()
    await here.at_baseline()


async def test_every_stream_goes_on_when_a_node_is_killed_or_frozen(tmp_path: Path) -> None:
    async with town(tmp_path, prefill=SLOW, decode=SLOW) as here:
        for victim in (here.prefill[0], here.decode[0]):
            for fate in (killed, frozen):
                await befalls(here, victim, fate)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("after_tokens", [0, 1, 20])
async def test_whatever_befalls_whichever_node_every_stream_goes_on(after_tokens: int, tmp_path: Path) -> None:
    async with town(tmp_path, prefill=SLOW, decode=SLOW) as here:
        for victim in here.nodes:
            for fate in (killed, told_to_stop, frozen_for_a_moment, frozen):
                await befalls(here, victim, fate, after_tokens=after_tokens)


async def test_the_death_of_a_router_ends_its_own_streams_only(tmp_path: Path) -> None:
    async with town(tmp_path, num_routers=2) as here:
        half = NUM_STREAMS // 2
        async with (
            here.asking(questions("killed")[:half]) as orphans,
            here.asking(questions("killed")[half:], router=1) as others,
        ):
            await heard(orphans[-1], 3)
            await here.routers[0].kill()
            for stream in others:
                await over(stream)
            assert all(stream.is_right for stream in others)
            await here.at_baseline()
        assert all(stream.broken and stream.is_true_so_far for stream in orphans)
        await here.routers[0].restart()
        await here.settled()
        async with here.asking(questions("restarted")) as streams:
            await heard(streams[-1], 3)
        assert all(stream.is_right for stream in streams)


async def test_streams_of_a_router_that_was_frozen_for_more_than_its_lease_go_on(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        async with here.asking(questions("frozen")) as streams:
            await heard(streams[-1], 3)
            here.routers[0].freeze()
            await here.at_baseline()
            here.routers[0].thaw()
        assert all(stream.is_right for stream in streams), [stream for stream in streams if not stream.is_right]
        await here.at_baseline()
