"""Control calls at any moment, inside a step and between its launch and its end too: accounts stay exact, tokens right."""

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.core.ids import BlockHash, RequestId
from twostep.core.request import ServiceLevel, Timing
from twostep.engine.batch import Batch
from twostep.engine.block_pool import BlockPool
from twostep.engine.config import SchedulingConfig
from twostep.engine.engine import Busy, StepResult
from twostep.tests.engine.fakes import ONE, SMALL, ask, build_engine
from twostep.tests.engine.request_specs import PREFIXES, RequestSpec, solo


class Meddler:
    """Reserves, starts, attaches, pauses and releases requests by chance, from inside and from outside of steps."""

    def __init__(self, chance: Random) -> None:
        self.now = 0.0
        self.token_budget, self.min_prefill_tokens = chance.randint(1, 80), chance.randint(1, 40)
        self.engine = build_engine(
            num_blocks=chance.randint(5, 9),
            token_budget=self.token_budget,
            min_prefill_tokens=self.min_prefill_tokens,
            max_batch=5,
            clock=lambda: self.now,
            on_run=self.inside,
            scheduling=scheduling(chance),
            model=replace(SMALL, depth=chance.randint(1, 3)),
        )
        self.specs: dict[RequestId, RequestSpec] = {}
        self.tokens: dict[RequestId, list[int]] = {}
        self.seen: Counter[str] = Counter()
        self._chance = chance
        self._is_over = False
        self._reserved: list[RequestId] = []
        self._alive: list[RequestId] = []

    def inside(self, batch: Batch) -> None:
        """A batch runs only now, however long ago it was launched: its blocks must be its requests' own still."""
        for _ in range(0 if self._is_over else self._chance.choice([0, 0, 1, 3])):
            self.meddle()
        in_step = {chunk.request: set(chunk.blocks) for chunk in batch.chunks}
        owners = self.engine.ledger().entries
        held = {entry.owner: set(entry.blocks) for entry in owners}
        assert all(blocks <= held[request] for request, blocks in in_step.items())

    def meddle(self) -> None:
        self.now += self._chance.random() * self._chance.choice([0.0, 0.01, 1.0])
        acts = [self._reserve, self._reserve, self._start, self._attach, self._cancel, self._pause, self._resume, self._resume]
        self._chance.choice(acts)()
        self.check()

    def step(self) -> bool:
        result = self.engine.step()
        if result:
            self._collect(result)
        self.check()
        return result is not None

    def finish(self) -> None:
        """Cancel what was only reserved, whose blocks others may lack, and let all that runs run out, paused or not."""
        self._is_over = True
        for request in self._reserved:
            self._forget(request)
        for request in self._alive:
            self.engine.resume(request)
        while self.step():
            pass
        self.check()

    def expected(self, request: RequestId) -> list[int]:
        """Return what the request gets when it is alone, as far as this engine's memory reaches."""
        spec = self.specs[request]
        return solo(spec)[: self.engine.max_tokens - len(spec.prompt)]

    def check(self) -> None:
        census = self.engine.census()
        assert census.orphaned == 0
        assert census.free + census.cached + census.referenced == census.total
        assert self.engine.audit() == ()

    def _pause(self) -> None:
        if self._alive:
            self.seen["paused"] += self.engine.pause(self._chance.choice(self._alive))

    def _resume(self) -> None:
        if self._alive:
            self.engine.resume(self._chance.choice(self._alive))

    def _reserve(self) -> None:
        number = len(self.specs)
        noise = Random(number % 7)
        prompt = (*self._chance.choice(PREFIXES), *noise.choices(range(97), k=noise.randint(1, 40)))
        spec = RequestSpec(prompt, (), num_draws=noise.choice([1, 20, 70, 120]), temperature=1.0, seed=number % 3)
        request = replace(spec.named(f"r{number}"), level=service_level(self._chance))
        try:
            self.engine.reserve(request, growth_tokens=1)
        except Busy:
            self.seen["busy"] += 1
            return
        self.specs[request.id] = spec
        self._reserved.append(request.id)
        self._alive.append(request.id)

    def _start(self) -> None:
        if self._reserved:
            request = self._reserved.pop(0)
            remaining_s = self._chance.choice([0.1, 1.0, 100.0])
            self.engine.start(request, attempt=ONE, timing=Timing(self._chance.random(), remaining_s))
            self.tokens[request] = []

    def _attach(self) -> None:
        """Attach a request of a tenant whose KV never came: its tokens are nonsense, and nobody else's."""
        request = ask(f"nonsense{self.seen['attached']}", range(40), max_tokens=60, cache_salt=b"nonsense")
        try:
            self.engine.reserve(request, growth_tokens=1)
        except Busy:
            return
        self.seen["attached"] += 1
        self.engine.attach(request.id, 1, attempt=ONE)
        self._alive.append(request.id)

    def _cancel(self) -> None:
        if self._alive and self._chance.random() < 0.5:
            request = self._chance.choice(self._alive)
            self._forget(request)
            self.tokens.pop(request, None)
            if request in self._reserved:
                self._reserved.remove(request)
            self.seen["cancelled"] += 1

    def _forget(self, request: RequestId) -> None:
        self._alive.remove(request)
        assert self.engine.release(request)
        assert not self.engine.release(request)

    def _collect(self, result: StepResult) -> None:
        self.seen["preempted"] += len(result.preempted)
        sizes = [len(chunk.tokens) for chunk in result.batch.chunks]
        num_decodes = sizes.count(1)
        assert sum(sizes) - num_decodes <= max(self.token_budget - num_decodes, self.min_prefill_tokens)
        assert len(sizes) == len({chunk.request for chunk in result.batch.chunks}) <= 5
        for each in result.events:
            assert each.request in self._alive
            if each.request in self.tokens:
                self.tokens[each.request].append(each.token)
            if each.finish:
                self._forget(each.request)


def scheduling(chance: Random) -> SchedulingConfig:
    return SchedulingConfig(
        max_wait_s=chance.choice([0.01, 2.0]),
        aging_s=chance.choice([0.5, 10.0]),
        turn_tokens=chance.choice([1, 20, 512]),
        min_run_tokens=chance.choice([1, 16]),
        max_preemptions=chance.choice([1, 3]),
        resume_spare_blocks=chance.choice([0, 1, 3]),
    )


def service_level(chance: Random) -> ServiceLevel:
    return ServiceLevel(
        priority=chance.randint(-1, 1),
        tenant=chance.choice("ab"),
        ttft_s=chance.choice([None, 0.5]),
        tpot_s=chance.choice([None, 0.01]),
    )


@settings(max_examples=settings.default.max_examples // 5)
@given(st.randoms(use_true_random=False))
def test_after_any_storm_of_control_calls_nothing_is_referenced(chance: Random) -> None:
    meddler = Meddler(chance)
    for _ in range(25):
        meddler.meddle()
        meddler.step()
    meddler.finish()
    assert meddler.engine.census().referenced == 0
    assert meddler.tokens == {request: meddler.expected(request) for request in meddler.tokens}


@settings(max_examples=settings.default.max_examples // 2)
@given(st.randoms(use_true_random=False))
def test_the_pools_indices_always_agree_with_its_block_table(chance: Random) -> None:
    pool, alive = BlockPool(8), list[RequestId]()
    for number in range(40):
        owner = RequestId(f"r{number}")
        if alive and chance.random() < 0.4:
            pool.release(alive.pop(chance.randrange(len(alive))))
        elif holding := pool.reserve(owner, chain := random_chain(chance), chance.randint(len(chain), 6)):
            alive.append(owner)
            for block, known_as in zip(holding.blocks, chain, strict=False):
                pool.publish(block, known_as)
        if chance.random() < 0.1:
            pool.purge([chance.randrange(8)])  # type: ignore[list-item]
        assert_consistent(pool, alive)


def random_chain(chance: Random) -> list[BlockHash]:
    letters = "".join(chance.choices("ab", k=chance.randint(0, 4)))
    return [BlockHash(letters[: end + 1].encode()) for end in range(len(letters))]


def assert_consistent(pool: BlockPool, alive: list[RequestId]) -> None:
    table = pool.table()
    census = table.census(alive)
    assert (len(pool._free), len(pool._evictable), census.orphaned) == (census.free, census.cached, 0)
    assert table.holdings() == {owner: tuple(sorted(blocks)) for owner, blocks in pool._held.items() if blocks}
    assert {known_as: block for block, known_as in table.hashes.items()} == pool._by_hash


def test_storms_meet_pauses_preemption_and_lack_of_room() -> None:
    """What the random cases are to cover, in cases that surely do."""
    seen: Counter[str] = Counter()
    for seed in range(8):
        meddler = Meddler(Random(seed))
        for _ in range(25):
            meddler.meddle()
            meddler.step()
        meddler.finish()
        seen.update(meddler.seen)
    assert min(seen[what] for what in ("paused", "preempted", "cancelled", "attached", "busy")) > 0
