"""A prefill and a decode node that compute nothing and keep time: a program, so that the router alone is measured.

It prints the nodes' addresses. `python -m twostep.benchmarks.router_rows.mock_nodes VOCABULARY TOKEN`.
"""

# ruff: noqa: ARG002, N802 - the protocol's names and signatures

import asyncio
import json
import signal
import sys
from collections import deque
from dataclasses import replace
from typing import Any, cast

from twostep.benchmarks.router_rows.shape import MAX_TOKENS, TPOT_S, TTFT_S
from twostep.proto import node_pb2 as pb
from twostep.tests.router.fake_nodes import GEOMETRY, FakeDecode, FakeNode, FakePrefill

FIRST_TOKENS = 1024


class MockDecode(FakeDecode):  # type: ignore[misc]
    """Steps like an engine: one message per step, one token for each request that runs."""

    def __init__(self, vocabulary: int, token: int) -> None:
        super().__init__("mock-decode")
        _make_roomy(self)
        self._vocabulary, self._token = vocabulary, token
        self._running: dict[str, tuple[int, int, int]] = {}
        self._num_steps = 0

    def answer(self, request: pb.GenerateRequest, attempt: int) -> None:
        self._running[request.id] = (attempt, 0, request.stop.max_tokens)
        self._emit([request.id])

    async def step_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TPOT_S - loop.time() % TPOT_S)
            self._num_steps += 1
            self._emit([name for name, (_, index, _) in self._running.items() if index])

    async def Cancel(self, request: pb.CancelRequest, context: Any) -> pb.CancelReply:
        self._running.pop(request.request, None)
        return pb.CancelReply(known=True)

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.NodeDescription:
        return _told(await super().Describe(request, context), self._vocabulary)

    def _emit(self, names: list[str]) -> None:
        batch = pb.TokenBatch()
        for name in names:
            attempt, index, most = self._running[name]
            batch.tokens.add(request=name, attempt=attempt, index=index, token=self._token)
            self._running[name] = (attempt, index + 1, most)
            if index + 1 >= most:
                del self._running[name]
                batch.ended.add(
                    request=name, attempt=attempt, finish_reason="length", num_tokens=most, bill=pb.DecodeBill(num_steps=most)
                )
        if names:
            self.send(batch)
        for ended in batch.ended:
            del self._routers[ended.request]

    def _status(self, num_living: int) -> pb.NodeStatus:
        status: pb.NodeStatus = super()._status(num_living)
        status.step = self._num_steps
        status.step_pace.base_s = TPOT_S
        return status


class MockPrefill(FakePrefill):  # type: ignore[misc]
    def __init__(self, decode: MockDecode, vocabulary: int) -> None:
        super().__init__("mock-prefill", [decode])
        _make_roomy(self)
        self._vocabulary = vocabulary
        self.on_prefill = self.take_time

    async def take_time(self, request: pb.PrefillRequest) -> pb.PrefillReply:
        await asyncio.sleep(TTFT_S)
        reply: pb.PrefillReply = await self.compute(request)
        return reply

    def _status(self, num_living: int) -> pb.NodeStatus:
        """A prompt takes the same time however long it is, and as a node that computes would, this one tells its pace."""
        status: pb.NodeStatus = super()._status(num_living)
        status.prefill_rates.add(position=0, token_s=TTFT_S / FIRST_TOKENS)
        status.prefill_rates.add(position=FIRST_TOKENS, token_s=0.0)
        return status

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.NodeDescription:
        return _told(await super().Describe(request, context), self._vocabulary)


def _make_roomy(node: FakeNode) -> None:
    node.max_prompt_tokens = MAX_TOKENS
    node.geometry = replace(GEOMETRY, max_model_tokens=MAX_TOKENS)
    # Nobody reads what was asked: only the latest is kept.
    for kind in ("beats", "peers", "cancelled", "reserves", "prefills", "traces"):
        setattr(node.seen, kind, cast(list[Any], deque[Any](maxlen=1)))


def _told(description: pb.NodeDescription, vocabulary: int) -> pb.NodeDescription:
    description.fingerprint["vocab_size"] = str(vocabulary)
    return description


async def main(vocabulary: int, token: int) -> None:
    decode = MockDecode(vocabulary, token)
    prefill = MockPrefill(decode, vocabulary)
    for node in (decode, prefill):
        await node.start()
    print(json.dumps({"prefill": prefill.address, "decode": decode.address}), flush=True)
    stepping = asyncio.create_task(decode.step_for_ever())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stepping.cancel)
    await asyncio.wait({stepping})


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
