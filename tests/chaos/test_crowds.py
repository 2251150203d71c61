"""Many at once, and nodes that do not belong together, with real processes."""

from pathlib import Path

import pytest

from twostep.tests.chaos.plan import Plan
from twostep.tests.chaos.questions import Question, crowd
from twostep.tests.chaos.streams import heard
from twostep.tests.chaos.town import require_right, town

pytestmark = pytest.mark.processes
BLOCK_BYTES = 16 << 10


async def test_the_200th_identical_question_is_answered_as_the_first(tmp_path: Path) -> None:
    async with town(Plan(tmp_path, num_decode=1)) as here:
        for _ in range(10):
            await here.answers_rightly([Question(1, max_tokens=4)] * 20)
        await here.at_baseline()


async def test_a_burst_of_four_times_what_fits_is_answered_whole_and_what_never_fits_at_once(tmp_path: Path) -> None:
    """The decode node holds four of the questions at a time, or one that takes 60 % of it."""
    small = {"engine.kv_bytes": 20 * BLOCK_BYTES, "landing_bytes": 10 * BLOCK_BYTES}
    async with town(Plan(tmp_path, num_prefill=1, num_decode=1, roles={"decode": small})) as here:
        await here.answers_rightly([Question(number, num_prompt=100, max_tokens=24) for number in range(16)])
        await here.answers_rightly([Question(number, num_prompt=12 * 32 - 20, max_tokens=10) for number in range(2)])
        async with here.asking([Question(1, num_prompt=21 * 32)]) as (refused,):
            pass
        assert (refused.status, refused.error) == (400, "prompt_too_long")
        await here.at_baseline()


async def test_in_a_rolling_update_only_nodes_of_one_version_are_paired_and_nothing_is_dropped(tmp_path: Path) -> None:
    """The versions have different fingerprints and the same answers."""
    new = {"model": "fake:vocab_size=128,step_s=0.01,max_model_tokens=4096"}
    async with town(Plan(tmp_path, each={"p1": new, "d1": new}), num_pairs=2) as here:
        async with here.asking(crowd("both")) as streams:
            await heard(streams[0], 3)
            for old in (here.prefill[0], here.decode[0]):
                old.ask_to_stop()
                assert await old.ended(within_s=60) == 0
        require_right(streams)
        await here.answers_rightly(crowd("new"))
