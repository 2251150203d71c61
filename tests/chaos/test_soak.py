"""A hundred random faults under random load: every stream is right or ends with a typed error, and nothing is left behind."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from twostep.tests.chaos.plan import Plan
from twostep.tests.chaos.programs import Program
from twostep.tests.chaos.questions import Question
from twostep.tests.chaos.streams import Stream
from twostep.tests.chaos.town import Town, town

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(900)]
SEEDS = (1, 2)
NUM_FAULTS = 50
NUM_CLIENTS = 8
LONGEST_PAUSE_S = 1.5
LONGEST_FREEZE_S = 3.0
"""Twice a lease."""
DROPOUTS = 0.1
MAX_GROWTH_BYTES = 24 << 20
EXPLAINED = {"node_unavailable", "node_unreachable", "no_ready_node", "transfer_failed", "transfer_timeout", "stale_leg"}
"""How a stream may end whose nodes, or all that could take their place, were hit."""


@dataclass(slots=True)
class Tally:
    """What happened to programs and to streams."""

    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[Stream] = field(default_factory=list)

    def note(self, stream: Stream, *, may_break: bool) -> None:
        """Count a stream, which may only break where its router may end."""
        if stream.broken:
            end, is_fine = "broken", may_break
        elif not stream.is_over:
            end, is_fine = "left", True
        else:
            end = "right" if stream.is_right else stream.error or "wrong"
            is_fine = stream.is_right or stream.error in EXPLAINED
        self.ends[end] += 1
        if not (is_fine and stream.is_true_so_far):
            self.wrong.append(stream)


class Soak:
    """Load and faults by one seed. The first program of each kind is never killed, so that its memory can be watched."""

    def __init__(self, here: Town, seed: int) -> None:
        self._here = here
        self._chance = random.Random(seed)
        self.tally = Tally()
        self._is_over = True

    async def run(self, num_faults: int) -> None:
        self._is_over = False
        async with asyncio.TaskGroup() as tasks:
            for _ in range(NUM_CLIENTS):
                tasks.create_task(self._keep_asking())
            for _ in range(num_faults):
                await asyncio.sleep(self._chance.uniform(0, LONGEST_PAUSE_S))
                await self._one_fault()
            self._is_over = True

    async def _keep_asking(self) -> None:
        chance = self._chance
        while not self._is_over:
            number = chance.randrange(200)
            question = Question(number, 20 + number * 2, 10 + number % 60, salt=str(chance.randrange(4)))
            stream = Stream(question)
            patience_s = chance.uniform(0, 0.5) if chance.random() < DROPOUTS else None
            router = chance.randrange(len(self._here.clients))
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await stream.listen(self._here.clients[router])
            self.tally.note(stream, may_break=router > 0)

    async def _one_fault(self) -> None:
        here, chance = self._here, self._chance
        kinds = (here.prefill, here.decode, here.routers)
        fault: Callable[[Program], Awaitable[None]] = chance.choice((self._freeze, self._kill, self._stop))
        may_end = [program for kind in kinds for program in kind[1:]]
        victim = chance.choice(here.programs if fault == self._freeze else may_end)
        self.tally.faults[f"{fault.__name__.lstrip('_')} {victim.name}"] += 1
        await fault(victim)

    async def _freeze(self, victim: Program) -> None:
        victim.freeze()
        await asyncio.sleep(self._chance.uniform(0, LONGEST_FREEZE_S))
        victim.thaw()

    async def _kill(self, victim: Program) -> None:
        await victim.kill()
        await victim.restart()

    async def _stop(self, victim: Program) -> None:
        victim.ask_to_stop()
        assert await victim.ended(within_s=40) == 0
        await victim.restart()


@pytest.mark.parametrize("seed", SEEDS)
async def test_after_many_faults_under_load_nothing_is_wrong_held_or_grown(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    async with town(Plan(tmp_path, num_routers=2)) as here:
        survivors = (here.prefill[0], here.decode[0], here.routers[0])
        soak = Soak(here, seed)
        await soak.run(NUM_FAULTS // 5)
        before = [program.resident_bytes() for program in survivors]
        await soak.run(NUM_FAULTS - NUM_FAULTS // 5)
        await here.settled()
        await here.at_baseline()
        growth = [after.resident_bytes() - earlier for after, earlier in zip(survivors, before, strict=True)]
        with capsys.disabled():
            print(f"\nseed {seed}: {time.monotonic() - began:.0f} s; faults {dict(soak.tally.faults)}")
            print(f"{soak.tally.ends.total()} streams {dict(soak.tally.ends)}; growth in KiB {[one >> 10 for one in growth]}")
        assert soak.tally.wrong == []
        assert max(growth) < MAX_GROWTH_BYTES
        logs = {program.name: program.log.read_text() for program in here.programs}
        assert [name for name, log in logs.items() if "Traceback" in log or '"level": "error"' in log] == []
