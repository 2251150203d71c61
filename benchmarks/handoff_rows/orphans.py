"""What real faults leave behind: blocks and landing extents that are held, on any node, once all requests have ended."""

import asyncio
import os
import random
import signal
import time
from collections import Counter, defaultdict
from contextlib import aclosing

from twostep.benchmarks.cluster.client import Answer
from twostep.benchmarks.cluster.running import RunningCluster, running_cluster
from twostep.benchmarks.handoff_rows.prompts import Prompts
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.cli.node_client import Ledger, fetch_ledger
from twostep.core.errors import NodeUnavailable

REAL = "orphaned blocks after 100 real faults"
SETTINGS = (
    "model=fake:vocab_size=128,step_s=0.005,token_s=0.0002",
    "engine.kv_bytes=20000000",
    "decode.landing_bytes=2000000",
    "decode.timers.landing_cooldown_s=1",
    "num_prefill=2",
    "num_decode=2",
)
SHARES = (2, 2, 1)
"""Of clients that leave, nodes that stand still, and nodes that are killed: a new start takes seconds."""
AT_ONCE = 8
LONGEST_PROMPT, OUTPUT_TOKENS = 1500, 30
LONGEST_STOP_S = 0.6
SETTLE_S = 60.0
LOOK_S = 0.2


async def measure(effort: Effort) -> Outcomes:
    num_faults = effort.pick(100, 20)
    async with running_cluster(*SETTINGS) as cluster:
        storm = Storm(cluster, num_faults)
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(storm.run())
        orphans = await _settled(cluster)
    return {REAL: Measured((float(orphans),), note=f"{storm.account()}; a landing extent that is held counts as a block")}


class Storm:
    """Sends requests, of which every other one suffers a fault, until there were enough faults."""

    def __init__(self, cluster: RunningCluster, num_faults: int) -> None:
        self._cluster = cluster
        self._faults_left = num_faults
        self._random = random.Random(1)
        self._prompts = Prompts()
        self._striking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._num_faults: Counter[str] = Counter()
        self._num_whole = 0
        self._num_failed = 0

    async def run(self) -> None:
        while self._faults_left:
            self._faults_left -= 1
            await self._random.choices((self._leave, self._stop_a_node, self._kill_a_prefill_node), SHARES)[0]()
            await self._ask()

    def account(self) -> str:
        faults = ", ".join(f"{count} {fault}" for fault, count in sorted(self._num_faults.items()))
        answers = f"{self._num_whole} whole answers, {self._num_failed} typed errors"
        return f"{faults}, while {AT_ONCE} requests ran: {answers}"

    async def _ask(self) -> None:
        answer = await self._cluster.client.ask(self._draw(), OUTPUT_TOKENS)
        self._num_whole += not answer.error
        self._num_failed += bool(answer.error)

    async def _leave(self) -> None:
        """Ask, and be gone before the answer is whole."""
        self._num_faults["clients gone"] += 1
        stream = self._cluster.client.stream(self._draw(), OUTPUT_TOKENS, Answer(time.monotonic()))
        try:
            async with asyncio.timeout(self._random.random()), aclosing(stream):
                async for _ in stream:
                    pass
        except TimeoutError:
            return

    async def _stop_a_node(self) -> None:
        self._num_faults[f"stops of nodes for up to {LONGEST_STOP_S} s"] += 1
        addresses = self._cluster.addresses
        name = self._random.choice((*addresses.prefill, *addresses.decode)).name
        async with self._striking[name]:
            pid = self._cluster.watch.pids()[name]
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(LONGEST_STOP_S * self._random.random())
            os.kill(pid, signal.SIGCONT)

    async def _kill_a_prefill_node(self) -> None:
        self._num_faults["kill -9 of prefill nodes, started again"] += 1
        name = self._random.choice(self._cluster.addresses.prefill).name
        async with self._striking[name]:
            await self._cluster.kill_and_restart(name)

    def _draw(self) -> list[int]:
        return self._prompts.draw(self._random.randint(1, LONGEST_PROMPT))


async def _settled(cluster: RunningCluster) -> int:
    """Return how much is held or orphaned once that is nothing, or when the time for it is over.

    Raises NodeUnavailable when a node that was started again cannot tell by then.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        is_over = time.monotonic() > deadline
        try:
            held = sum(map(_held, await _ledgers(cluster)))
        except NodeUnavailable:
            if is_over:
                raise
        else:
            if not held or is_over:
                return held
        await asyncio.sleep(LOOK_S)


def _held(ledger: Ledger) -> int:
    num_extents = sum(holding.landing_bytes > 0 for holding in ledger.holdings)
    return ledger.orphaned_blocks + ledger.referenced_blocks + num_extents


async def _ledgers(cluster: RunningCluster) -> list[Ledger]:
    nodes = (*cluster.addresses.prefill, *cluster.addresses.decode)
    return list(await asyncio.gather(*(fetch_ledger(node.grpc) for node in nodes)))


ORPHANS = Measurement((REAL,), measure)
