"""What D does when the copies of a leg that has landed as a whole are not verified."""

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from twostep.core.errors import StaleLeg, TransferTimeout
from twostep.tests.handoff.pair import running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, TIMERS, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes


async def test_a_leg_that_is_never_verified_is_given_up_when_that_is_due_and_its_blocks_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asyncio.Event()

    def never(*of: Any) -> "Future[Any]":
        asked.set()
        return Future()

    one = request("a", 100)
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        with monkeypatch.context() as stuck:
            stuck.setattr(pair.decode.parts.receiver, "finish", never)
            first = asyncio.ensure_future(pair.router.prefill(one, (await pair.router.grant(one)).ticket))
            await asked.wait()
            for _ in range(int(TIMERS.progress_s)):
                pair.decode.tick()
                pair.clock.advance(0.997)
            left_s = pair.decode.tick()
            assert left_s == pytest.approx(0.09)
            assert not pair.router.answer("a").over.is_set()
            pair.clock.advance(left_s)
            pair.decode.tick()
            await pair.router.answer("a").over.wait()
        error = pair.router.answer("a").error
        assert isinstance(error, TransferTimeout)
        assert error.message == "request a: what has landed was not verified for 30 s"
        assert pair.decode.parts.engine.census().referenced
        await pair.router.prefill(one, (await pair.router.grant(one, attempt=2)).ticket)
        with pytest.raises(StaleLeg):
            await first
        await pair.router.answer("a", 2).over.wait()
        assert tuple(pair.router.answer("a", 2).tokens) == Solo(MODEL).answer(one)[0]
        await pair.settle()
        pair.require_clean()
