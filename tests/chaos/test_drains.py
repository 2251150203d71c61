"""Each program is told to stop in the middle of its work: it ends well, and what it cannot finish goes on elsewhere."""

import signal
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from twostep.cli.node_client import cordon
from twostep.tests.chaos.plan import Plan, Settings
from twostep.tests.chaos.programs import Program
from twostep.tests.chaos.questions import Question
from twostep.tests.chaos.streams import all_over, heard
from twostep.tests.chaos.town import Town, counted, require_right, town
from twostep.tests.chaos.waiting import until

pytestmark = pytest.mark.processes
ENDS_S = 20.0
AT_ONCE_S = 5.0
NO_RETRIES: Mapping[str, Settings] = {"r0": {"retry_reserve": 1, "retry_share": 0}}
"""A router that may make one new attempt and no more: nothing that is planned may need it."""


def questions(salt: str, *, max_tokens: int = 300, num_streams: int = 6) -> list[Question]:
    """Answers of a few seconds."""
    return [Question(number, num_prompt=80, max_tokens=max_tokens, salt=salt) for number in range(num_streams)]


async def test_a_decode_node_hands_its_long_answers_to_another(tmp_path: Path) -> None:
    plan = Plan(tmp_path, num_prefill=1, roles={"decode": {"timers.drain_s": 0.5}}, each=NO_RETRIES)
    async with town(plan) as here:
        async with here.asking(questions("decode", max_tokens=600, num_streams=8)) as streams:
            for stream in streams:
                await heard(stream, 3)
            here.decode[0].ask_to_stop()
            assert await here.decode[0].ended(within_s=ENDS_S) == 0
            assert not all(stream.is_over for stream in streams)
        require_right(streams)
        here.decode.pop(0)
        await here.at_baseline()


async def test_a_decode_node_with_time_enough_finishes_its_answers(tmp_path: Path) -> None:
    async with town(Plan(tmp_path, num_prefill=1, num_decode=1, roles={"decode": {"timers.drain_s": 30}})) as here:
        async with here.asking(questions("whole", max_tokens=100)) as streams:
            for stream in streams:
                await heard(stream, 3)
            here.decode[0].ask_to_stop()
        require_right(streams)
        assert await here.decode[0].ended(within_s=ENDS_S) == 0


async def test_a_prefill_node_ends_well_under_load(tmp_path: Path) -> None:
    slow = {"model": "fake:vocab_size=128,step_s=0.005,token_s=0.002"}
    plan = Plan(tmp_path, num_decode=1, nodes=slow, roles={"prefill": {"timers.drain_s": 0.3}}, each=NO_RETRIES)
    async with town(plan) as here:
        async with here.asking(questions("prefill", max_tokens=20, num_streams=12)) as streams:
            await heard(streams[0], 1)
            here.prefill[0].ask_to_stop()
            assert await here.prefill[0].ended(within_s=ENDS_S) == 0
        require_right(streams)
        here.prefill.pop(0)
        await here.at_baseline()


async def test_nodes_that_are_idle_and_out_of_service_get_no_request_any_more(tmp_path: Path) -> None:
    """Routers hear of it with their next heartbeat, which may be half a second away."""
    async with town(Plan(tmp_path, each=NO_RETRIES)) as here:
        victims = here.prefill[0], here.decode[0]
        for victim in victims:
            assert (await cordon(victim.addresses["grpc"], "new memory")).is_idle
        await here.answers_rightly(questions("idle", max_tokens=20, num_streams=8))
        assert [await counted(victim, "twostep_handoffs_total") for victim in victims] == [0, 0]


async def test_a_router_finishes_what_it_has_and_ends_the_rest_with_an_error(tmp_path: Path) -> None:
    async with town(Plan(tmp_path, num_prefill=1, num_decode=1, each={"r0": {"drain_s": 4}})) as here:
        async with (
            here.asking(questions("short", max_tokens=30, num_streams=2)) as short,
            here.asking(questions("long", max_tokens=900, num_streams=2)) as long,
        ):
            for stream in (*short, *long):
                await heard(stream, 3)
            here.routers[0].ask_to_stop()
            await all_over((*short, *long))
            with pytest.raises(httpx.ConnectError):
                await here.clients[0].get("/ready")
        assert await here.routers[0].ended(within_s=ENDS_S) == 0
        require_right(short)
        assert all(stream.error == "node_unavailable" and stream.is_true_so_far for stream in long), long
        await here.at_baseline()


@pytest.mark.parametrize("role", ["prefill", "decode", "routers"])
async def test_the_second_signal_ends_a_program_at_once(role: str, tmp_path: Path) -> None:
    slow = {"model": "fake:vocab_size=128,step_s=4.0", "timers.progress_s": 20}
    async with town(Plan(tmp_path, num_prefill=1, num_decode=1, nodes=slow)) as here:
        victim = getattr(here, role)[0]
        async with here.asking(questions(role, num_streams=1)) as streams:
            if role == "prefill":
                await until(lambda: _computes(victim), within_s=ENDS_S)
            else:
                await heard(streams[0], 1)
            victim.ask_to_stop()
            await until(lambda: _drains(here, victim), within_s=AT_ONCE_S)
            victim.ask_to_stop()
            assert await victim.ended(within_s=AT_ONCE_S) == 128 + signal.SIGTERM
            for program in here.programs:
                program.end()


async def _computes(node: Program) -> str:
    return "" if await counted(node, "twostep_legs", phase="computing") else f"{node.name} computes nothing yet"


async def _drains(here: Town, program: Program) -> str:
    """A node says so; a router takes no connections any more."""
    if program in here.nodes:
        return "" if "the node drains" in program.log.read_text() else f"{program.name} does not drain yet"
    try:
        await here.clients[0].get("/ready")
    except httpx.ConnectError:
        return ""
    except httpx.RemoteProtocolError:
        return f"{program.name} has just ended a connection that was open"
    return f"{program.name} still takes connections"
