"""Many at once, and nodes that do not belong together, with real processes."""

from dataclasses import replace
from pathlib import Path

import pytest

from twostep.tests.chaos.questions import Question
from twostep.tests.chaos.town import Town, heard, town

pytestmark = pytest.mark.processes
BLOCK_BYTES = 16 << 10


async def all_right(here: Town, questions: list[Question]) -> None:
    async with here.asking(questions) as streams:
        pass
    assert all(stream.is_right for stream in streams), [stream for stream in streams if not stream.is_right]


async def test_the_200th_identical_question_is_answered_as_the_first(tmp_path: Path) -> None:
    async with town(tmp_path, num_decode=1) as here:
        for _ in range(10):
            await all_right(here, [Question(1, max_tokens=4)] * 20)
        await here.at_baseline()


async def test_a_burst_of_four_times_what_fits_is_answered_whole_and_what_never_fits_at_once(tmp_path: Path) -> None:
    """The decode node holds four of the questions at a time, or one that takes 60 % of it."""
    small = {"engine.kv_bytes": 20 * BLOCK_BYTES, "landing_bytes": 10 * BLOCK_BYTES}
    async with town(tmp_path, num_prefill=1, num_decode=1, decode=small) as here:
        await all_right(here, [Question(number, num_prompt=100, max_tokens=24) for number in range(16)])
        await all_right(here, [Question(number, num_prompt=12 * 32 - 20, max_tokens=10) for number in range(2)])
        async with here.asking([Question(1, num_prompt=21 * 32)]) as (refused,):
            pass
        assert (refused.status, refused.error) == (400, "prompt_too_long")
        await here.at_baseline()


async def test_in_a_rolling_update_only_nodes_of_one_version_are_paired_and_nothing_is_dropped(tmp_path: Path) -> None:
    """The versions have different fingerprints and the same answers."""
    new = {"model": "fake:vocab_size=128,step_s=0.01,max_model_tokens=4096"}
    async with town(tmp_path, each={"p1": new, "d1": new}, num_pairs=2) as here:
        questions = [Question(number, num_prompt=80, max_tokens=60) for number in range(16)]
        async with here.asking(questions) as streams:
            await heard(streams[0], 3)
            for old in (here.prefill[0], here.decode[0]):
                old.ask_to_stop()
                assert await old.ended(within_s=20) == 0
        assert all(stream.is_right for stream in streams), [stream for stream in streams if not stream.is_right]
        await all_right(here, [replace(question, salt="new") for question in questions])
