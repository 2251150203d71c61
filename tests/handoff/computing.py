"""A pair of nodes whose prefill node stands in the middle of a step until a test lets it go on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from twostep.decode_node.config import DecodeNodeConfig
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.proto import node_pb2 as pb
from twostep.tests.handoff.gate import PATIENCE_S, Gate
from twostep.tests.handoff.pair import Pair, running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL, request

Prefilling = asyncio.Future[pb.PrefillReply]


@asynccontextmanager
async def computing(
    *, prefill: PrefillNodeConfig = PREFILL, decode: DecodeNodeConfig = DECODE, **how: Any
) -> AsyncIterator[tuple[Pair, Gate, Prefilling]]:
    """A pair in whose prefill node request `a` stands in the middle of its only step, until the gate opens.

    `how` it was reserved. What its router waits for comes last.
    """
    gate = Gate()
    async with running_pair(MODEL, prefill, decode, prefill_gate=gate) as pair:
        gate.close()
        prefilling = await _prefill(pair, "a", **how)
        assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S), "request a was not computed"
        yield pair, gate, prefilling


async def queued_behind_it(pair: Pair, name: str) -> Prefilling:
    """Send another request, and return once it waits in the prefill node, which has no room for it."""
    prefilling = await _prefill(pair, name)
    async with asyncio.timeout(PATIENCE_S):
        while not pair.prefill.legs.waiting:
            await pair.router.status()
    return prefilling


async def _prefill(pair: Pair, name: str, **how: Any) -> Prefilling:
    one = request(name, 100)
    granted = await pair.router.grant(one, **how)
    return asyncio.ensure_future(pair.router.prefill(one, granted.ticket))
