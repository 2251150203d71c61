"""The promise across two engines: prefill on P, KV carried over, decode on D, and every token as if one engine had done it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from twostep.core.digest import Words
from twostep.core.kv_memory import LandedPiece
from twostep.core.request import Request
from twostep.engine.engine import Engine, StepResult
from twostep.tests.engine.by_hand import ATTEMPT, Carrier, Leg, Spoil
from twostep.tests.engine.fakes import ask, build_engine, drain, put, tokens_by_request
from twostep.tests.engine.request_specs import RequestSpec, request_specs, solo

Tokens = dict[str, list[int]]
LONG = RequestSpec(prompt=tuple(range(90)) + tuple(range(60)), output_tokens=(), num_draws=12, temperature=0.0, seed=0)


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "block_tokens": draw(st.sampled_from([32, 64, 96])),
        "token_budget": draw(st.integers(1, 200)),
        "layer_group": draw(st.integers(1, 3)),
    }


def hand_off(carrier: Carrier, requests: list[Request]) -> Tokens:
    """Prefill all requests together on P, carry each over once it is computed, and decode them together on D."""
    legs = {request.id: carrier.open(request) for request in requests}
    tokens: Tokens = {}
    while (result := carrier.source.step()) is not None:
        for each in result.events:
            tokens[each.request] = [each.token]
            attach(carrier, legs[each.request], each.token)
    for request, more in tokens_by_request(drain(carrier.destination)).items():
        tokens[request] += more
    return tokens


def attach(carrier: Carrier, leg: Leg, first_token: int) -> None:
    request = leg.here.request
    carrier.carry(leg)
    if carrier.destination.attach(request.id, first_token, attempt=ATTEMPT):
        carrier.destination.release(request.id)
    carrier.source.release(request.id)


def warm(engine: Engine, spec: RequestSpec | None) -> None:
    """Let an engine serve a request of its own, so that its prefix cache is not empty."""
    if spec:
        put(engine, spec.named("warm"))
        drain(engine)


def assert_nothing_is_referenced(*engines: Engine) -> None:
    for engine in engines:
        census = engine.census()
        assert (census.referenced, census.orphaned, census.free + census.cached) == (0, 0, census.total)


@settings(max_examples=2 * settings.default.max_examples)
@given(
    asked=st.lists(request_specs(max_draws=8), min_size=1, max_size=3),
    warm_up=st.tuples(st.none() | request_specs(max_draws=1), st.none() | request_specs(max_draws=1)),
    shape=st.tuples(shapes(), shapes()),
    num_slots=st.integers(0, 4),
    seed=st.integers(0, 99),
)
def test_a_handed_off_request_draws_the_tokens_of_one_engine(
    asked: list[RequestSpec],
    warm_up: tuple[RequestSpec | None, RequestSpec | None],
    shape: tuple[dict[str, Any], dict[str, Any]],
    num_slots: int,
    seed: int,
) -> None:
    source, destination = (build_engine(num_blocks=24, **each) for each in shape)
    warm(source, warm_up[0])
    warm(destination, warm_up[1])
    carrier = Carrier(source, destination, seed=seed, num_slots=num_slots)
    tokens = hand_off(carrier, [spec.named(f"r{i}") for i, spec in enumerate(asked)])
    assert tokens == {f"r{i}": solo(spec) for i, spec in enumerate(asked)}
    assert carrier.num_mismatched == 0
    assert_nothing_is_referenced(source, destination)
    event(f"block sizes {source.runner.geometry.block_tokens} to {destination.runner.geometry.block_tokens}")


@pytest.mark.parametrize(("source_size", "size"), [(32, 32), (32, 64), (64, 32)])
def test_decode_computes_no_prompt_token_and_skips_what_it_holds(source_size: int, size: int) -> None:
    source, destination = build_engine(block_tokens=source_size), build_engine(block_tokens=size)
    warm(destination, LONG)
    carrier = Carrier(source, destination)
    leg = carrier.open(LONG.named("a"))
    assert (leg.missing.start, leg.missing.end) == (128, 150)
    (first,) = tokens_by_request(run_to_rest(source))["a"]
    attach(carrier, leg, first)
    results = drain(destination)
    assert [first, *tokens_by_request(results)["a"]] == solo(LONG)
    assert {result.record.num_prompt_tokens for result in results} == {0}


def run_to_rest(engine: Engine) -> list[StepResult]:
    results = []
    while (result := engine.step()) is not None:
        results.append(result)
    return results


def test_a_request_preempted_after_its_handoff_is_computed_again_to_the_same_tokens() -> None:
    spec = RequestSpec(prompt=tuple(range(60)), output_tokens=(), num_draws=60, temperature=1.0, seed=1)
    other = RequestSpec(prompt=tuple(range(30, 90)), output_tokens=(), num_draws=60, temperature=1.0, seed=2)
    source, destination = build_engine(), build_engine(num_blocks=6)
    carrier = Carrier(source, destination)
    requests = [spec.named("r0"), other.named("r1")]
    legs = {request.id: carrier.open(request) for request in requests}
    tokens = tokens_by_request(run_to_rest(source))
    for request, (first,) in tokens.items():
        attach(carrier, legs[request], first)
    results = drain(destination)
    for request, more in tokens_by_request(results).items():
        tokens[request] += more
    assert [request for result in results for request in result.preempted] == ["r1"]
    assert tokens == {"r0": solo(spec), "r1": solo(other)}
    assert_nothing_is_referenced(source, destination)


def test_a_second_identical_prompt_moves_less_and_answers_the_same() -> None:
    carrier = Carrier(build_engine(), build_engine())
    assert hand_off(carrier, [LONG.named("a")])["a"] == solo(LONG)
    assert len(carrier.open(LONG.named("b")).missing) == 150 - 128
    carrier.source.release(LONG.named("b").id)
    carrier.destination.release(LONG.named("b").id)
    assert hand_off(carrier, [LONG.named("c")])["c"] == solo(LONG)


def test_forced_tokens_cross_with_the_prompt() -> None:
    whole = solo(LONG)
    rest = ask("rest", LONG.prompt, output_tokens=whole[:5], max_tokens=LONG.num_draws)
    carrier = Carrier(build_engine(), build_engine(block_tokens=64))
    assert hand_off(carrier, [rest])["rest"] == whole[5:]


def swap_slots(landing: Words, piece: LandedPiece) -> None:
    landing[piece.layers.start, [0, 1]] = landing[piece.layers.start, [1, 0]]


def swap_heads(landing: Words, piece: LandedPiece) -> None:
    landing[piece.layers.start, 0, [0, 1]] = landing[piece.layers.start, 0, [1, 0]]


def flip_a_byte(landing: Words, piece: LandedPiece) -> None:
    landing[piece.layers.stop - 1, 2, 1, 17, 3] ^= np.uint32(0x80)


def leave_a_slot_stale(landing: Words, piece: LandedPiece) -> None:
    del piece
    landing[1, 3] = 0x5EED


@pytest.mark.parametrize("spoil", [swap_slots, swap_heads, flip_a_byte, leave_a_slot_stale])
@pytest.mark.parametrize("size", [32, 64])
def test_whatever_lands_wrong_changes_digest_and_answer(spoil: Spoil, size: int) -> None:
    carrier = Carrier(build_engine(layer_group=3), build_engine(block_tokens=size), num_slots=0, spoil=spoil)
    carrier._runs = lambda num_blocks, _: [range(num_blocks)]  # type: ignore[method-assign]
    tokens = hand_off(carrier, [LONG.named("a")])["a"]
    assert carrier.num_mismatched > 0
    assert tokens[0] == solo(LONG)[0]
    assert tokens[1:] != solo(LONG)[1:]


def test_a_block_attached_in_the_wrong_place_changes_the_answer() -> None:
    carrier = Carrier(build_engine(), build_engine())
    leg = carrier.open(LONG.named("a"))
    (first,) = tokens_by_request(run_to_rest(carrier.source))["a"]
    carrier.carry(leg)
    words = carrier.destination.runner.kv.words  # type: ignore[attr-defined]
    words[:, [leg.there.table[0], leg.there.table[1]]] = words[:, [leg.there.table[1], leg.there.table[0]]]
    carrier.destination.attach(leg.there.request.id, first, attempt=ATTEMPT)
    assert tokens_by_request(drain(carrier.destination))["a"] != solo(LONG)[1:]
