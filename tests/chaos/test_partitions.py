"""Router and nodes on machines of their own, and the links between them cut: for a moment, for long, or unnoticed."""

from pathlib import Path

import pytest

from twostep.tests.chaos.network import Network
from twostep.tests.chaos.plan import SLOW, Plan
from twostep.tests.chaos.questions import crowd
from twostep.tests.chaos.streams import all_over, heard, one_heard
from twostep.tests.chaos.town import town

pytestmark = pytest.mark.processes
LINKS = (("p0", "d0"), ("r0", "p0"), ("r0", "d0"))


async def test_streams_go_on_around_a_link_that_is_cut(tmp_path: Path, net: Network) -> None:
    async with town(Plan(tmp_path, nodes=SLOW, network=net)) as here:
        for link in LINKS:
            async with here.asking(crowd("-".join(link))) as streams:
                await heard(streams[0], 1)
                with net.cut(*link):
                    await all_over(streams)
            await here.is_well(streams)


@pytest.mark.long
async def test_streams_go_on_when_a_link_is_cut_and_heals(tmp_path: Path, net: Network) -> None:
    async with town(Plan(tmp_path, nodes=SLOW, network=net)) as here:
        for link in LINKS:
            for after_tokens, until_tokens in ((0, 1), (1, 10), (1, 40), (20, 40)):
                async with here.asking(crowd(f"{link} {after_tokens} {until_tokens}")) as streams:
                    await one_heard(streams, after_tokens)
                    with net.cut(*link):
                        await one_heard(streams, until_tokens)
                await here.is_well(streams)


@pytest.mark.long
async def test_streams_go_on_without_a_node_that_nobody_can_reach(tmp_path: Path, net: Network) -> None:
    async with town(Plan(tmp_path, nodes=SLOW, network=net)) as here:
        for name in ("p0", "d0"):
            for after_tokens in (0, 1, 20):
                async with here.asking(crowd(f"{name} {after_tokens}")) as streams:
                    await one_heard(streams, after_tokens)
                    with net.unplugged(name):
                        await all_over(streams)
                await here.is_well(streams)


async def test_a_peer_that_cannot_be_reached_keeps_no_other_waiting(tmp_path: Path, net: Network) -> None:
    async with town(Plan(tmp_path, network=net)) as here:
        with net.cut("p0", "d0"):
            await here.prefill[0].kill()
            await here.prefill[0].restart()
            await here.settled(num_pairs=3)
            await here.answers_rightly(crowd("meanwhile"))
        await here.settled()
        await here.at_baseline()


@pytest.mark.long
async def test_connections_that_a_nat_has_forgotten_are_made_anew(tmp_path: Path, net: Network) -> None:
    async with town(Plan(tmp_path, network=net)) as here:
        with net.forgotten_connections():
            async with here.asking(crowd("forgotten")) as streams:
                pass
            assert [stream for stream in streams if not stream.is_clean] == []
            await here.settled()
            await here.answers_rightly(crowd("anew"))
            await here.at_baseline()
