"""A prefill node is frozen or killed in the middle of a write, and its bytes land when their place belongs to others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from twostep.engine.fake_runner import FakeModel
from twostep.tests.chaos.freezing_prefill import AFTER, BEFORE
from twostep.tests.chaos.memory import NodeMemory
from twostep.tests.chaos.plan import Plan
from twostep.tests.chaos.programs import Program
from twostep.tests.chaos.questions import Question
from twostep.tests.chaos.town import Town, counted, require_right, town
from twostep.tests.chaos.waiting import until

pytestmark = pytest.mark.processes
MODEL = FakeModel(vocab_size=128, num_kv_heads=4, head_dim=64, step_s=0.01)
"""8 KB of KV for each token."""
BLOCK_BYTES = 32 * MODEL.num_layers * MODEL.num_kv_heads * 2 * MODEL.head_dim * 4
PROMPT = 512
PROMPT_BYTES = PROMPT // 32 * BLOCK_BYTES
PATHS = {
    # With small socket buffers most of a write is still on its way when its post returns.
    "tcp": {"UCX_TLS": "tcp,self", "UCX_TCP_SNDBUF": "64k", "UCX_TCP_RCVBUF": "64k"},
    "shared memory": {"UCX_TLS": "posix,sysv,cma,tcp,self"},
}
LATE_S = 60.0


def question(number: int, max_tokens: int = 4) -> Question:
    return Question(number, PROMPT, max_tokens, MODEL)


@dataclass(frozen=True, slots=True)
class Scene:
    """Two prefill nodes that can freeze in a write, and a decode node whose memory can be seen."""

    town: Town
    memory: NodeMemory

    @property
    def decode(self) -> Program:
        return self.town.decode[0]

    async def ask(self, *numbers: int) -> None:
        """Ask all at once; every answer must be right."""
        await self.town.answers_rightly([question(number) for number in numbers])

    async def first_to_write(self, question: Question, moment: int = BEFORE) -> list[Program]:
        """Freeze the prefill node that the router picks, at `moment`; return it, then the one that answered instead."""
        async with self.writing(question, moment) as writers:
            pass
        return writers

    @asynccontextmanager
    async def writing(self, question: Question, moment: int) -> AsyncIterator[list[Program]]:
        """Ask, and yield the prefill node that is frozen in its write, then the other; in the end the answer is right."""
        for node in self.town.prefill:
            node.send(moment)
        async with self.town.asking([question]) as streams:
            await until(self._none_frozen, within_s=LATE_S)
            writers = sorted(self.town.prefill, key=lambda node: not node.is_frozen)
            writers[1].send(moment)
            yield writers
        require_right(streams)

    async def _none_frozen(self) -> str:
        return "" if any(node.is_frozen for node in self.town.prefill) else "no prefill node writes"

    async def landing_changed(self, before: bytes) -> None:
        async def missing() -> str:
            return "" if self.memory.landing() != before else "no byte has landed"

        await until(missing, within_s=LATE_S)

    async def cooled_down(self) -> None:
        """Wait until the space of a leg that nobody could prove to be quiet is free again."""

        async def missing() -> str:
            return "" if await counted(self.decode, "twostep_unproven_reuse_total") else "no extent has cooled down"

        await until(missing, within_s=LATE_S)


@asynccontextmanager
async def scene(folder: Path, path: str, **decode: object) -> AsyncIterator[Scene]:
    knobs = f"vocab_size={MODEL.vocab_size},num_kv_heads={MODEL.num_kv_heads},head_dim={MODEL.head_dim},step_s={MODEL.step_s}"
    memory_file = folder / "memory.json"
    plan = Plan(
        folder,
        num_decode=1,
        nodes={"model": f"fake:{knobs}", "engine.kv_bytes": 3 * PROMPT_BYTES, "engine.token_budget": PROMPT},
        roles={"decode": {"landing_bytes": 2 * PROMPT_BYTES + BLOCK_BYTES, "landing_share": 0.5, **decode}},
        modules={"prefill": "twostep.tests.chaos.freezing_prefill", "decode": "twostep.tests.chaos.telling_decode"},
        environment={**PATHS[path], "MEMORY_FILE": str(memory_file)},
    )
    async with town(plan) as here:
        yield Scene(here, NodeMemory(here.decode[0], memory_file))


@pytest.mark.parametrize("path", PATHS)
async def test_what_lands_late_changes_no_kv_block_and_no_answer(path: str, tmp_path: Path) -> None:
    async with scene(tmp_path, path) as here:
        writer, _ = await here.first_to_write(question(0), BEFORE if path == "shared memory" else AFTER)
        await here.ask(1)
        assert writer.is_frozen
        await here.cooled_down()
        lent_before = here.memory.landing()
        await here.ask(*range(2, 8))
        kv, landing = here.memory.kv(), here.memory.landing()
        assert landing != lent_before
        writer.thaw()
        await here.landing_changed(landing)
        await here.town.settled()
        await here.town.at_baseline()
        assert here.memory.kv() == kv
        await here.ask(*range(8))


@pytest.mark.parametrize("path", ["tcp", pytest.param("shared memory", marks=pytest.mark.long)])
async def test_a_writer_killed_in_a_write_spoils_nothing_and_comes_back_at_its_address(path: str, tmp_path: Path) -> None:
    async with scene(tmp_path, path) as here:
        async with here.writing(question(0), AFTER) as (writer, _), here.town.asking([question(1)]) as others:
            await writer.kill()
        require_right(others)
        await here.cooled_down()
        await here.ask(*range(2, 8))
        kv = here.memory.kv()
        await writer.restart()
        await here.town.settled()
        await here.town.at_baseline()
        assert here.memory.kv() == kv
        await here.ask(*range(8))


async def test_a_copy_that_a_late_write_has_spoiled_is_found_and_made_good(tmp_path: Path) -> None:
    """B's bytes have landed where A's were to land; A's land on top of them before the decode node has copied B's."""
    async with scene(tmp_path, "shared memory", **{"timers.progress_s": 10}) as here:
        a, b = await here.first_to_write(question(1))
        await here.cooled_down()
        b.send(BEFORE)
        async with here.town.asking([question(2)]) as streams:
            await b.frozen()
            here.decode.freeze()
            for node in (b, a):
                landing = here.memory.landing()
                node.thaw()
                await here.landing_changed(landing)
            here.decode.thaw()
        require_right(streams)
        assert await counted(here.decode, "twostep_digest_mismatches_total") > 0
        await here.town.settled()
        await here.town.at_baseline()
