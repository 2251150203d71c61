"""What operators do to a cluster that serves: nobody's answer is lost, and none is other than undisturbed.

Real programs stand in for pods; what is done to them is what Kubernetes does.
"""

import asyncio
from pathlib import Path

import pytest

from twostep.cli.main import main
from twostep.cli.node_client import fetch_load
from twostep.engine.fake_runner import FakeModel
from twostep.tests.chaos.pods import Pods, pods
from twostep.tests.chaos.questions import Question, undisturbed
from twostep.tests.chaos.streams import Stream, heard

pytestmark = pytest.mark.processes


def lost(streams: list[Stream]) -> list[Stream]:
    assert len(streams) > 8
    return [stream for stream in streams if not stream.is_right]


async def replace_all(here: Pods, role: str, num: int, *, settings: dict[str, object] | None = None) -> None:
    """Replace a pool one by one, each new node before an old one, as a Deployment with maxSurge 1 does."""
    for old in [name for name in here.nodes if name.startswith(role[0])]:
        await here.start(role, settings)
        await here.proven(num)
        await here.terminate(old)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_rolling_update_of_a_pool_loses_nothing(tmp_path: Path, role: str) -> None:
    async with pods(tmp_path) as here:
        async with here.under_load() as streams:
            await replace_all(here, role, 2)
        assert lost(streams) == []
        await here.at_baseline()


async def test_scaling_down_loses_nothing(tmp_path: Path) -> None:
    async with pods(tmp_path, num_prefill=2, num_decode=2) as here:
        async with here.under_load() as streams:
            await here.terminate("d3")
            await here.terminate("p1")
        assert lost(streams) == []
        await here.at_baseline()


async def test_a_node_that_is_drained_by_hand_loses_nothing_and_can_be_put_back(tmp_path: Path) -> None:
    async with pods(tmp_path, num_decode=2) as here:
        address = here.nodes["d2"].addresses["grpc"]
        async with here.under_load() as streams:
            assert await asyncio.to_thread(main, ["drain", address, "--reason", "new memory", "--timeout", "30"]) == 0
            assert (await fetch_load(address)).not_ready_reason == "cordoned: new memory"
            await here.answered(streams, len(streams) + 4)
            assert (await fetch_load(address)).is_idle
            assert await asyncio.to_thread(main, ["drain", address, "--undo"]) == 0
            await here.proven(2)
        assert lost(streams) == []
        await here.at_baseline()


async def test_a_pod_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    async with pods(tmp_path, num_prefill=2, num_decode=2) as here:
        async with here.under_load() as streams:
            await here.kill("d3")
            await here.kill("p1")
            await here.start("decode")
            await here.start("prefill")
            await here.proven(4)
        assert lost(streams) == []
        await here.at_baseline()


async def test_a_rollout_of_the_routers_loses_nothing(tmp_path: Path) -> None:
    async with pods(tmp_path) as here:
        to = {"now": 0}
        async with here.under_load(routers=to) as streams:
            to["now"] = await here.start_router()
            # Who has chosen the old router has reached it.
            for stream in tuple(streams):
                await heard(stream, 1)
            here.routers[0].ask_to_stop()
            assert await here.routers[0].ended(within_s=60) == 0
        assert lost(streams) == []
        await here.at_baseline()


async def test_a_new_model_in_both_pools_at_once_pairs_old_with_old_and_new_with_new(tmp_path: Path) -> None:
    new = FakeModel(vocab_size=128, num_layers=6)
    settings = {"model": "fake:vocab_size=128,num_layers=6,step_s=0.01"}

    def is_of_one_model(stream: Stream) -> bool:
        question = stream.question
        renewed = Question(question.number, question.num_prompt, question.max_tokens, new, question.salt)
        return stream.is_right or (stream.is_over and not stream.error and stream.text == undisturbed(renewed))

    async with pods(tmp_path) as here:
        async with here.under_load() as streams:
            await here.start("prefill", settings)
            await here.start("decode", settings)
            await here.proven(2)
            await here.terminate("p0")
            await here.terminate("d1")
        assert [stream for stream in streams if not is_of_one_model(stream)] == []
        assert not streams[-1].is_right
        await here.at_baseline()


@pytest.mark.long
async def test_several_routers_see_the_same_nodes_come_and_go(tmp_path: Path) -> None:
    async with pods(tmp_path, num_decode=2) as here:
        await here.start_router()
        await here.proven(2)
        async with here.under_load(routers={"now": 0}) as one, here.under_load(routers={"now": 1}) as other:
            await replace_all(here, "decode", 3)
        assert lost(one) == lost(other) == []
        await here.at_baseline()
