"""Steps launched before the last is known: what they are planned from, and what becomes of those that nobody waits for."""

from dataclasses import dataclass, replace

import pytest

from twostep.core.errors import RequestFault
from twostep.core.ids import RequestId
from twostep.core.request import FinishReason
from twostep.engine.batch import UNKNOWN_TOKEN, Batch
from twostep.engine.engine import Engine, StepResult
from twostep.engine.runner import Collect, OnLayers, Ran
from twostep.engine.sequence import Sequence
from twostep.engine.sequence_table import SequenceTable
from twostep.tests.engine.fakes import SMALL, ask, build_engine, drain, put, tokens_by_request

DEEP = replace(SMALL, depth=2)
A = RequestId("a")


@dataclass(slots=True)
class Device:
    """The fake runner, beside whose launches and ends it keeps a diary. `spoil` names a request that fails at its next end."""

    engine: Engine
    diary: list[tuple[str, dict[str, tuple[int, ...]]]]
    spoil: str = ""

    @classmethod
    def under(cls, engine: Engine) -> "Device":
        device = cls(engine, [])
        inner = engine.runner

        class Watched:
            kv, fingerprint, geometry, kernels, depth = inner.kv, inner.fingerprint, inner.geometry, "watched", inner.depth

            def launch(self, batch: Batch, on_layers: OnLayers) -> Collect:
                device.note("launch", batch)
                collect = inner.launch(batch, on_layers)
                return lambda: device.ended(batch, collect())

        engine.runner = Watched()
        return device

    def note(self, what: str, batch: Batch) -> None:
        self.diary.append((what, {chunk.request: chunk.tokens for chunk in batch.chunks}))

    def ended(self, batch: Batch, ran: Ran) -> Ran:
        self.note("end", batch)
        failing, self.spoil = self.spoil, ""
        fault = RequestFault("NaN")
        drawn = [fault if chunk.request == failing else each for chunk, each in zip(batch.chunks, ran.drawn, strict=True)]
        return Ran(drawn)


def step(engine: Engine) -> StepResult:
    result = engine.step()
    assert result is not None
    return result


def held(engine: Engine) -> int:
    return engine.census().referenced


def test_the_next_step_is_launched_with_unknown_tokens_before_the_last_has_ended() -> None:
    engine = build_engine(model=DEEP)
    device = Device.under(engine)
    put(engine, ask("a", [1, 2], max_tokens=3))
    drain(engine)
    unknown = {"a": (UNKNOWN_TOKEN,)}
    assert device.diary == [
        ("launch", {"a": (1, 2)}),
        ("launch", unknown),
        ("end", {"a": (1, 2)}),
        ("launch", unknown),
        ("end", unknown),
        ("end", unknown),
    ]


def test_a_prompt_in_chunks_is_launched_ahead_chunk_by_chunk() -> None:
    engine = build_engine(model=DEEP, token_budget=3, min_prefill_tokens=1)
    device = Device.under(engine)
    put(engine, ask("a", range(7), max_tokens=1))
    step(engine)
    assert [tokens for what, tokens in device.diary if what == "launch"] == [{"a": (0, 1, 2)}, {"a": (3, 4, 5)}]


def test_an_answer_that_ends_by_its_length_is_not_launched_beyond_it() -> None:
    engine = build_engine(model=DEEP)
    device = Device.under(engine)
    put(engine, ask("a", [1], max_tokens=2))
    put(engine, ask("b", [2], max_tokens=4))
    drain(engine)
    launched = [set(tokens) for what, tokens in device.diary if what == "launch"]
    assert launched == [{"a", "b"}, {"a", "b"}, {"b"}, {"b"}]


def test_what_is_drawn_beyond_a_stop_id_is_nobodys() -> None:
    tokens = tokens_by_request(drain(asked("a", [5], max_tokens=8, depth=1)))["a"]
    engine = asked("a", [5], max_tokens=8, stop_ids=[tokens[2]])
    device = Device.under(engine)
    results = drain(engine)
    assert tokens_by_request(results)["a"] == tokens[: tokens.index(tokens[2]) + 1]
    assert results[-2].events[-1].finish is FinishReason.STOP
    assert results[-1].events == ()
    assert device.diary[-1] == ("end", {"a": (UNKNOWN_TOKEN,)})


def test_blocks_of_an_ended_request_are_free_when_the_last_step_that_touches_them_has_ended() -> None:
    engine = asked("a", range(40), max_tokens=9)
    step(engine)
    assert engine.release(A)
    assert (held(engine), engine.knows(A)) == (2, True)
    assert step(engine).events == ()
    assert (held(engine), engine.knows(A)) == (0, False)
    assert engine.step() is None


def test_a_request_that_is_ended_and_released_late_keeps_its_blocks_over_the_end_of_its_step() -> None:
    engine = asked("a", range(40), max_tokens=9)
    step(engine)
    engine.end(A)
    assert step(engine).events == ()
    assert held(engine) == 2
    engine.release(A)
    assert held(engine) == 0


def test_a_request_that_failed_draws_no_more_and_its_other_step_only_lands() -> None:
    engine = asked("a", range(40), max_tokens=9)
    device = Device.under(engine)
    device.spoil = "a"
    assert [request for request, _ in step(engine).faults] == [A]
    late = step(engine)
    assert (late.events, late.faults) == ((), ())
    assert engine.step() is None
    engine.release(A)
    assert engine.audit() == ()


def test_a_paused_request_gets_what_was_launched_for_it_and_goes_on_where_it_was() -> None:
    whole = tokens_by_request(drain(asked("a", [3], max_tokens=6, depth=1)))["a"]
    engine = asked("a", [3], max_tokens=6)
    first = step(engine).events
    engine.pause(A)
    second = step(engine).events
    assert engine.step() is None
    engine.resume(A)
    rest = tokens_by_request(drain(engine))["a"]
    assert [event.token for event in (*first, *second)] + rest == whole


def test_nobody_is_preempted_while_a_step_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    flying: list[bool] = []

    def preempt(table: SequenceTable, sequence: Sequence) -> None:
        flying.append(table.is_any_flying)
        preempt_now(table, sequence)

    preempt_now = SequenceTable.preempt
    monkeypatch.setattr(SequenceTable, "preempt", preempt)
    engine = build_engine(model=DEEP, num_blocks=5)
    put(engine, ask("a", range(31), max_tokens=70))
    put(engine, ask("b", range(40, 70), max_tokens=70))
    results = drain(engine)
    assert flying == [False] * sum(len(result.preempted) for result in results) != []
    alone = [drain(asked("a", range(31), max_tokens=70, depth=1)), drain(asked("b", range(40, 70), max_tokens=70, depth=1))]
    assert tokens_by_request(results) == {**tokens_by_request(alone[0]), **tokens_by_request(alone[1])}


def asked(
    name: str, prompt: range | list[int], *, max_tokens: int, stop_ids: list[int] | None = None, depth: int = 2
) -> Engine:
    """An engine that is to answer one request."""
    engine = build_engine(model=replace(SMALL, depth=depth))
    put(engine, ask(name, prompt, max_tokens=max_tokens, stop_ids=stop_ids or []))
    return engine
