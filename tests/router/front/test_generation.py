"""Several answers of one reply run together: all of them, or none."""

import asyncio
import time

import pytest

from twostep.core.errors import QueueFull, RequestFault
from twostep.core.ids import RequestId
from twostep.router.admission.in_flight import Admission
from twostep.router.front.generation import run_together
from twostep.router.front.http.completions import choice_ids
from twostep.router.front.openai.usage import Usage, total
from twostep.router.metrics import Metrics


async def later(value: int, turns: int) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


async def test_answers_come_in_the_order_in_which_they_were_asked() -> None:
    assert await run_together([later(1, 5), later(2, 0), later(3, 2)]) == [1, 2, 3]


async def test_the_first_failure_is_raised_as_it_is_and_ends_the_others() -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("endless")

    async def failing() -> None:
        await asyncio.sleep(0)
        raise RequestFault("NaN")

    with pytest.raises(RequestFault, match="NaN"):
        await run_together([endless(), failing()])
    assert ended == ["endless"]


def test_only_the_choices_of_a_batch_have_names_of_their_own() -> None:
    assert choice_ids(RequestId("req-1"), 1) == ["req-1"]
    assert choice_ids(RequestId("req-1"), 2) == ["req-1-0", "req-1-1"]


def test_usage_is_summed_over_the_choices() -> None:
    assert total([Usage(3, 5, 1), Usage(4, 1, 0)]) == Usage(7, 6, 1)


async def test_a_batch_takes_all_its_places_or_none() -> None:
    admission = Admission(3, Metrics(), time.monotonic)
    with admission.admit(2):
        with pytest.raises(QueueFull, match="at most 3 requests are served at once, found 2 and 2 more"), admission.admit(2):
            pass
        waiting = asyncio.create_task(admission.until_empty(timeout_s=10))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting
