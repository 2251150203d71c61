"""A storm of cancellations, failing and spoiled writes, and new attempts: no wrong token, and nothing stays behind."""

import asyncio
import ctypes
import random
from dataclasses import dataclass

import pytest

from twostep.core.errors import ServingError
from twostep.core.ids import NodeRef
from twostep.core.request import Request
from twostep.decode_node.config import DecodeNodeConfig
from twostep.kv_transfer.local_transport import LocalFabric
from twostep.node.config import Timers
from twostep.node.description import PeerStage
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.prefill_node.pair_health import PairLimits
from twostep.tests.handoff.mini_router import Answer
from twostep.tests.handoff.pair import Pair, engine_config, running_pair
from twostep.tests.handoff.requests import MODEL, request
from twostep.tests.handoff.solo import Solo

pytestmark = pytest.mark.processes

TIMERS = Timers(lease_s=1000.0, landing_cooldown_s=5.0, handshake_retry_s=0.01)
PREFILL = PrefillNodeConfig(
    timers=TIMERS,
    engine=engine_config(blocks=24, model=MODEL, token_budget=64),
    pairs=PairLimits(max_mismatches=1000),
)
DECODE = DecodeNodeConfig(timers=TIMERS, engine=engine_config(blocks=24, model=MODEL), landing_bytes=1 << 19)
NUM_REQUESTS = 30
MAX_ATTEMPTS = 4


class StormyFabric(LocalFabric):
    """Loses some writes and spoils others, by chance."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.is_calm = True

    def write(self, node: NodeRef, copies: list[tuple[int, int, int]], note: bytes) -> bool:
        fate = 1.0 if self.is_calm else self._rng.random()
        if fate < 0.02:
            return False
        landed = super().write(node, copies, b"" if fate < 0.2 else note)
        if fate < 0.04:
            ctypes.c_uint8.from_address(copies[0][1]).value ^= 1
        return landed and fate >= 0.01


@dataclass(slots=True)
class Client:
    """One request and what its client does: waits for the answer, or leaves after a while."""

    pair: Pair
    rng: random.Random
    request: Request
    leaves: bool = False

    async def run(self) -> Answer | None:
        """Return the answer to the attempt that came through, or None."""
        self.leaves = self.rng.random() < 0.4
        leaving = asyncio.ensure_future(self._leave()) if self.leaves else None
        answer = None
        for attempt in range(1, MAX_ATTEMPTS + 1):
            answer = await self._try(attempt)
            if answer or (leaving and leaving.done()):
                break
        if leaving:
            await leaving
        await self.pair.router.cancel(self.request.id)
        return answer

    async def _try(self, attempt: int) -> Answer | None:
        router, alone = self.pair.router, self.rng.random() < 0.15
        answer = router.answer(self.request.id, attempt)
        try:
            granted = await router.grant(self.request, attempt=attempt, alone=alone)
            if not alone:
                await router.prefill(self.request, granted.ticket)
        except ServingError:
            return None
        await answer.over.wait()
        return None if answer.error else answer

    async def _leave(self) -> None:
        for _ in range(self.rng.randrange(40)):
            await self.pair.router.status()
        await self.pair.router.cancel(self.request.id)


@pytest.mark.parametrize("seed", range(4))
async def test_after_a_storm_nothing_is_referenced_and_no_token_was_wrong(seed: int) -> None:
    rng = random.Random(seed)
    fabric, solo = StormyFabric(rng), Solo(MODEL)
    async with running_pair(MODEL, PREFILL, DECODE, fabric=fabric) as pair:
        fabric.is_calm = False
        lengths = [rng.choice((31, 32, 64, 100, 130)) for _ in range(NUM_REQUESTS)]
        requests = [request(f"request-{number % 7}-{number}", length) for number, length in enumerate(lengths)]
        clients = [Client(pair, random.Random(f"{seed}{one.id}"), one) for one in requests]
        answers = await asyncio.gather(*(client.run() for client in clients))
        for client, answer in zip(clients, answers, strict=True):
            expected = solo.answer(client.request)[0]
            tokens = tuple(answer.tokens) if answer else ()
            assert tokens == expected[: len(tokens)]
            assert answer is None or client.leaves or tokens == expected
        assert any(answers)
        fabric.is_calm = True
        await pair.settle()
        pair.tick(advance_s=TIMERS.landing_cooldown_s)
        pair.require_clean()
        await recover(pair)
        last = request("last", 100)
        assert (await pair.router.serve(last)).tokens == solo.answer(last)[0]


async def recover(pair: Pair) -> None:
    """Wait until the nodes have shaken hands again, should a lost write have put the path in doubt."""
    while any(state.stage is not PeerStage.PROVEN for state in pair.prefill.parts.peers.states()):
        await pair.router.status()
