"""The engine's promise: whatever the chunks, budget, batch mates, prefix hits, block size and preemptions, the same tokens."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import event, given, settings
from hypothesis import strategies as st

from twostep.core.ids import Attempt
from twostep.core.request import Request
from twostep.engine.engine import Busy, Engine, StepResult

Build = Callable[..., Engine]
Ask = Callable[..., Request]
Tokens = dict[str, list[int]]

PREFIXES = ([], list(range(32)), list(range(40)), list(range(64)), list(range(50)) + list(range(40, 70)))


@dataclass(frozen=True, slots=True)
class Wish:
    """One request before it has a name."""

    prompt: tuple[int, ...]
    output_tokens: tuple[int, ...]
    num_draws: int
    temperature: float
    seed: int


@st.composite
def wishes(draw: st.DrawFn) -> Wish:
    prefix = draw(st.sampled_from(PREFIXES))
    rest = draw(st.lists(st.integers(0, 96), min_size=1, max_size=70))
    forced = draw(st.lists(st.integers(0, 96), max_size=3))
    return Wish(
        prompt=(*prefix, *rest),
        output_tokens=tuple(forced),
        num_draws=draw(st.integers(1, 40)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 3)),
    )


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, int]:
    block_tokens = draw(st.sampled_from([32, 64]))
    return {
        "block_tokens": block_tokens,
        "num_blocks": draw(st.integers(6, 12)) * 32 // block_tokens,
        "token_budget": draw(st.integers(1, 150)),
        "min_prefill_tokens": draw(st.integers(1, 64)),
        "max_batch": draw(st.integers(1, 5)),
        "layer_group": draw(st.integers(1, 3)),
    }


def request_of(ask: Ask, name: str, wish: Wish) -> Request:
    return ask(
        name,
        wish.prompt,
        output_tokens=wish.output_tokens,
        max_tokens=len(wish.output_tokens) + wish.num_draws,
        temperature=wish.temperature,
        seed=wish.seed,
    )


def serve(engine: Engine, requests: list[Request], seen: Counter[str]) -> Tokens:
    """Serve all requests in order as a node would: reserve when there is room, release when finished."""
    tokens: Tokens = {request.id: [] for request in requests}
    waiting = list(requests)
    while True:
        while waiting and admitted(engine, waiting[0], seen):
            waiting.pop(0)
        result = engine.step()
        if result is None:
            assert not waiting
            return tokens
        collect(engine, result, tokens, seen)


def admitted(engine: Engine, request: Request, seen: Counter[str]) -> bool:
    try:
        reservation = engine.reserve(request, growth_tokens=1)
    except Busy:
        return False
    seen["hit"] += reservation.cached_tokens > 0
    engine.start(request.id, attempt=Attempt(1))
    return True


def collect(engine: Engine, result: StepResult, tokens: Tokens, seen: Counter[str]) -> None:
    seen["preempted"] += len(result.preempted)
    seen["chunked"] += any(chunk.draw is None for chunk in result.batch.chunks)
    for each in result.events:
        tokens[each.request].append(each.token)
        if each.finish:
            engine.release(each.request)


SOLO: dict[Wish, list[int]] = {}


def solo(build_engine: Build, ask: Ask, wish: Wish) -> list[int]:
    """Return the tokens that a fresh engine draws when it serves nothing else, the prompt in one chunk."""
    if wish not in SOLO:
        engine = build_engine(num_blocks=64, token_budget=4096)
        SOLO[wish] = serve(engine, [request_of(ask, "solo", wish)], Counter())["solo"]
    return SOLO[wish]


@settings(max_examples=150, deadline=None)
@given(st.lists(wishes(), min_size=1, max_size=6), shapes())
def test_a_request_draws_the_same_tokens_alone_and_in_any_company(
    build_engine: Build, ask: Ask, asked: list[Wish], shape: dict[str, int]
) -> None:
    seen: Counter[str] = Counter()
    engine = build_engine(**shape)
    requests = [request_of(ask, f"r{i}", wish) for i, wish in enumerate(asked)]
    tokens = serve(engine, requests, seen)
    for request, wish in zip(requests, asked, strict=True):
        assert tokens[request.id] == solo(build_engine, ask, wish)
    census = engine.census()
    assert (census.referenced, census.free + census.cached) == (0, census.total)
    for what, times in seen.items():
        event(f"{what}: {times > 0}")


def test_a_crowd_meets_hits_chunks_and_preemption(build_engine: Build, ask: Ask) -> None:
    """What the random cases are to cover, in one case that surely does."""
    wish = Wish(prompt=tuple(range(64)), output_tokens=(), num_draws=90, temperature=1.0, seed=0)
    seen: Counter[str] = Counter()
    engine = build_engine(num_blocks=8, token_budget=40, max_batch=4)
    tokens = serve(engine, [request_of(ask, f"r{i}", wish) for i in range(6)], seen)
    assert set(map(tuple, tokens.values())) == {tuple(solo(build_engine, ask, wish))}
    assert min(seen["hit"], seen["chunked"], seen["preempted"]) > 0
