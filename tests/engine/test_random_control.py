"""Control calls at any moment, inside a step too: the accounts stay exact, and who is not cancelled gets the right tokens."""

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.core.ids import BlockHash, RequestId
from twostep.engine.batch import Batch
from twostep.engine.block_pool import BlockPool
from twostep.engine.engine import Busy, StepResult
from twostep.tests.engine.fakes import ONE, ask, build_engine
from twostep.tests.engine.request_specs import PREFIXES, RequestSpec, solo


class Meddler:
    """Reserves, starts, attaches and releases requests by chance, from inside and from outside of steps."""

    def __init__(self, chance: Random) -> None:
        self.engine = build_engine(
            num_blocks=chance.randint(6, 14), token_budget=chance.randint(1, 80), max_batch=5, on_run=self.inside
        )
        self.specs: dict[RequestId, RequestSpec] = {}
        self.tokens: dict[RequestId, list[int]] = {}
        self.seen: Counter[str] = Counter()
        self._chance = chance
        self._reserved: list[RequestId] = []
        self._alive: list[RequestId] = []

    def inside(self, batch: Batch) -> None:
        for _ in range(self._chance.randint(0, 3)):
            self.meddle()
        in_step = {chunk.request: set(chunk.blocks) for chunk in batch.chunks}
        owners = self.engine.ledger().entries
        held = {entry.owner: set(entry.blocks) for entry in owners}
        assert all(blocks <= held[request] for request, blocks in in_step.items())

    def meddle(self) -> None:
        self._chance.choice([self._reserve, self._reserve, self._start, self._attach, self._cancel])()
        self.check()

    def step(self) -> bool:
        result = self.engine.step()
        if result:
            self._collect(result)
        self.check()
        return result is not None

    def finish(self) -> None:
        """Let all that runs run out, and cancel what was only reserved."""
        while self.step():
            pass
        for request in self._alive:
            assert self.engine.release(request)
        self.check()

    def check(self) -> None:
        census = self.engine.census()
        assert census.orphaned == 0
        assert census.free + census.cached + census.referenced == census.total

    def _reserve(self) -> None:
        number = len(self.specs)
        noise = Random(number % 7)
        prompt = (*self._chance.choice(PREFIXES), *noise.choices(range(97), k=noise.randint(1, 40)))
        spec = RequestSpec(prompt, (), num_draws=noise.randint(1, 20), temperature=1.0, seed=number % 3)
        request = spec.named(f"r{number}")
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
            self.engine.start(request, attempt=ONE)
            self.tokens[request] = []

    def _attach(self) -> None:
        """Attach a request of a tenant whose KV never came: its tokens are nonsense, and nobody else's."""
        request = ask(f"nonsense{self.seen['attached']}", range(40), max_tokens=9, cache_salt=b"nonsense")
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
        for each in result.events:
            assert each.request in self._alive
            if each.request in self.tokens:
                self.tokens[each.request].append(each.token)
            if each.finish:
                self._forget(each.request)


@settings(max_examples=settings.default.max_examples // 5)
@given(st.randoms(use_true_random=False))
def test_after_any_storm_of_control_calls_nothing_is_referenced(chance: Random) -> None:
    meddler = Meddler(chance)
    for _ in range(25):
        meddler.meddle()
        meddler.step()
    meddler.finish()
    assert meddler.engine.census().referenced == 0
    assert meddler.tokens == {request: solo(meddler.specs[request]) for request in meddler.tokens}


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
