"""Router and nodes on machines of their own, and the links between them cut: for a moment, for long, or unnoticed."""

from pathlib import Path

import pytest

from twostep.tests.chaos.network import Network
from twostep.tests.chaos.questions import Question, Stream
from twostep.tests.chaos.town import Town, heard, one_heard, over, town

pytestmark = pytest.mark.processes
NUM_STREAMS = 16
LINKS = (("p0", "d0"), ("r0", "p0"), ("r0", "d0"))
SLOW = {"model": "fake:vocab_size=128,step_s=0.005,token_s=0.001"}
"""Prompts take a moment, so that a cut meets requests in every phase."""


def questions(salt: str) -> list[Question]:
    return [Question(number, num_prompt=80, max_tokens=60, salt=salt) for number in range(NUM_STREAMS)]


async def all_are_over(streams: list[Stream]) -> None:
    for stream in streams:
        await over(stream)


async def all_is_well(here: Town, streams: list[Stream]) -> None:
    assert all(stream.is_right for stream in streams), [stream for stream in streams if not stream.is_right]
    await here.settled()
    await here.at_baseline()


async def test_streams_go_on_around_a_link_that_is_cut(tmp_path: Path, net: Network) -> None:
    async with town(tmp_path, network=net, prefill=SLOW, decode=SLOW) as here:
        for link in LINKS:
            async with here.asking(questions("-".join(link))) as streams:
                await heard(streams[0], 1)
                with net.cut(*link):
                    await all_are_over(streams)
            await all_is_well(here, streams)


@pytest.mark.long
async def test_streams_go_on_when_a_link_is_cut_and_heals(tmp_path: Path, net: Network) -> None:
    async with town(tmp_path, network=net, prefill=SLOW, decode=SLOW) as here:
        for link in LINKS:
            for after_tokens, until_tokens in ((0, 1), (1, 10), (1, 40), (20, 40)):
                async with here.asking(questions(f"{link} {after_tokens} {until_tokens}")) as streams:
                    await one_heard(streams, after_tokens)
                    with net.cut(*link):
                        await one_heard(streams, until_tokens)
                await all_is_well(here, streams)


@pytest.mark.long
async def test_streams_go_on_without_a_node_that_nobody_can_reach(tmp_path: Path, net: Network) -> None:
    async with town(tmp_path, network=net, prefill=SLOW, decode=SLOW) as here:
        for name in ("p0", "d0"):
            for after_tokens in (0, 1, 20):
                async with here.asking(questions(f"{name} {after_tokens}")) as streams:
                    await one_heard(streams, after_tokens)
                    with net.unplugged(name):
                        await all_are_over(streams)
                await all_is_well(here, streams)


async def test_a_peer_that_cannot_be_reached_keeps_no_other_waiting(tmp_path: Path, net: Network) -> None:
    async with town(tmp_path, network=net) as here:
        with net.cut("p0", "d0"):
            await here.prefill[0].kill()
            await here.prefill[0].restart()
            await here.settled(num_pairs=3)
            async with here.asking(questions("meanwhile")) as streams:
                pass
            assert all(stream.is_right for stream in streams), streams
        await all_is_well(here, streams)


@pytest.mark.long
async def test_connections_that_a_nat_has_forgotten_are_made_anew(tmp_path: Path, net: Network) -> None:
    async with town(tmp_path, network=net) as here:
        with net.forgotten_connections():
            async with here.asking(questions("forgotten")) as streams:
                pass
            assert all(stream.is_clean for stream in streams), streams
            await here.settled()
            async with here.asking(questions("anew")) as streams:
                pass
            await all_is_well(here, streams)
