"""One engine, step by step: what it computes, shares, preempts, and gives back."""

import pytest

from twostep.core.errors import Conflict, EngineFault, InvalidRequest, PromptTooLong, RequestFault
from twostep.core.ids import Attempt, RequestId
from twostep.core.request import FinishReason
from twostep.engine.batch import Batch
from twostep.engine.engine import Busy, Engine, Load, StepResult
from twostep.engine.ledger import Census, LedgerEntry
from twostep.engine.runner import Collect, OnLayers, Ran
from twostep.tests.engine.fakes import ONE, ask, build_engine, drain, put, run_out, tokens_by_request


def step(engine: Engine) -> StepResult:
    result = engine.step()
    assert result is not None
    return result


def sizes(result: StepResult) -> dict[str, int]:
    return {chunk.request: len(chunk.tokens) for chunk in result.batch.chunks}


def counts(engine: Engine) -> tuple[int, int, int]:
    census = engine.census()
    assert census.orphaned == 0
    return census.free, census.cached, census.referenced


# Reserving.


def test_a_reservation_takes_blocks_for_the_prompt_and_its_growth() -> None:
    engine = build_engine(num_blocks=8)
    reservation = engine.reserve(ask("a", range(33)), growth_tokens=32)
    assert (reservation.table, reservation.cached_tokens) == ((0, 1, 2), 0)
    assert engine.census() == Census(free=5, cached=0, referenced=3, orphaned=0, total=8)
    assert engine.step() is None


def test_no_blocks_are_taken_beyond_the_longest_sequence() -> None:
    engine = build_engine(max_model_tokens=64)
    assert engine.reserve(ask("a", [1] * 60), growth_tokens=100).table == (0, 1)


def test_forced_tokens_are_reserved_like_the_prompt() -> None:
    reservation = build_engine().reserve(ask("a", range(31), output_tokens=[1, 2]), growth_tokens=0)
    assert reservation.table == (0, 1)


def test_a_prompt_that_never_fits_is_refused_with_limit_and_value() -> None:
    engine = build_engine(num_blocks=2)
    assert engine.max_prompt_tokens(growth_tokens=1) == 63
    engine.reserve(ask("fits", [1] * 63), growth_tokens=1)
    with pytest.raises(PromptTooLong, match="prompt has 64 tokens, this node takes at most 63"):
        engine.reserve(ask("never", [1] * 64), growth_tokens=1)


def test_the_models_own_limit_leaves_room_for_one_token() -> None:
    engine = build_engine(max_model_tokens=40)
    with pytest.raises(PromptTooLong, match="prompt has 40 tokens, this node takes at most 39"):
        engine.reserve(ask("a", [1] * 40), growth_tokens=0)


@pytest.mark.parametrize(("prompt", "message"), [([], "empty"), ([97], r"\[0, 97\)"), ([-1], r"\[0, 97\)")])
def test_tokens_that_the_model_does_not_know_are_refused(prompt: list[int], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        build_engine().reserve(ask("a", prompt), growth_tokens=1)


def test_a_known_id_is_a_conflict_until_it_is_released() -> None:
    engine = build_engine()
    engine.reserve(ask("a", [1]), growth_tokens=1)
    with pytest.raises(Conflict, match="request a is known here already: it is reserved"):
        engine.reserve(ask("a", [1]), growth_tokens=1)
    engine.release(RequestId("a"))
    engine.reserve(ask("a", [1]), growth_tokens=1)


def test_a_request_that_does_not_fit_now_takes_nothing() -> None:
    engine = build_engine(num_blocks=4)
    engine.reserve(ask("a", [1] * 60), growth_tokens=1)
    with pytest.raises(Busy):
        engine.reserve(ask("b", [1] * 70), growth_tokens=1)
    assert counts(engine) == (2, 0, 2)
    assert [entry.owner for entry in engine.ledger().entries] == ["a"]


def test_each_running_request_keeps_a_block_to_grow_into() -> None:
    engine = build_engine(num_blocks=4)
    put(engine, ask("a", [1] * 60, max_tokens=6))
    with pytest.raises(Busy):
        engine.reserve(ask("b", [1] * 60), growth_tokens=1)
    engine.reserve(ask("c", [1] * 20), growth_tokens=1)


@pytest.mark.parametrize("max_draws", [None, 1])
def test_a_running_request_that_outgrows_no_block_keeps_none(max_draws: int | None) -> None:
    engine = build_engine(num_blocks=4)
    engine.reserve(ask("a", [1] * 60, max_tokens=5 if max_draws is None else 500), growth_tokens=1)
    engine.start(RequestId("a"), attempt=ONE, max_draws=max_draws)
    engine.reserve(ask("b", [1] * 60), growth_tokens=1)


def test_room_to_grow_may_be_about_to_come_back() -> None:
    engine = build_engine(num_blocks=4)
    put(engine, ask("a", [1] * 30, max_tokens=40))
    engine.reserve(ask("gone", [2] * 20), growth_tokens=1)
    with pytest.raises(Busy):
        engine.reserve(ask("b", [3] * 60), growth_tokens=1)
    engine.end(RequestId("gone"))
    engine.reserve(ask("b", [3] * 60), growth_tokens=1)


def test_places_are_limited_and_a_resting_request_holds_none() -> None:
    engine = build_engine(max_batch=2)
    engine.reserve(ask("a", [1]), growth_tokens=1)
    put(engine, ask("b", [1], max_tokens=1))
    with pytest.raises(Busy, match="all 2 places are taken"):
        engine.reserve(ask("c", [1]), growth_tokens=1)
    run_out(engine)
    engine.reserve(ask("c", [1]), growth_tokens=1)


# Computing.


def test_an_engine_alone_answers_by_the_stop_rules_and_rests() -> None:
    engine = build_engine()
    put(engine, ask("a", range(50), max_tokens=3))
    events = run_out(engine)
    assert [(event.attempt, event.index, event.finish) for event in events] == [
        (1, 0, None),
        (1, 1, None),
        (1, 2, FinishReason.LENGTH),
    ]
    assert counts(engine) == (62, 0, 2)
    assert engine.release(RequestId("a"))
    assert counts(engine) == (63, 1, 0)


def test_a_stop_id_ends_the_answer() -> None:
    engine = build_engine()
    put(engine, ask("a", range(50), max_tokens=9))
    tokens = [event.token for event in run_out(engine)]
    put(engine, ask("b", range(50), max_tokens=9, stop_ids=[tokens[4]]))
    events = run_out(engine)
    assert [event.token for event in events] == tokens[: tokens.index(tokens[4]) + 1]
    assert events[-1].finish is FinishReason.STOP


def test_a_prompt_is_computed_in_chunks_under_the_budget() -> None:
    engine = build_engine(token_budget=40)
    put(engine, ask("a", range(90), max_tokens=2))
    results = [step(engine) for _ in range(4)]
    assert [sizes(result) for result in results] == [{"a": 40}, {"a": 40}, {"a": 10}, {"a": 1}]
    assert [len(result.events) for result in results] == [0, 0, 1, 1]
    assert [(r.record.num_prompt_tokens, r.record.num_decode_tokens) for r in results] == [(40, 0), (40, 0), (10, 0), (0, 1)]


def test_a_decode_goes_on_while_a_long_prompt_is_computed() -> None:
    engine = build_engine(token_budget=33)
    put(engine, ask("short", [1], max_tokens=9))
    step(engine)
    put(engine, ask("long", range(70)))
    assert [sizes(step(engine)) for _ in range(3)] == [
        {"short": 1, "long": 32},
        {"short": 1, "long": 32},
        {"short": 1, "long": 6},
    ]


def test_an_answer_ends_when_the_longest_sequence_is_reached() -> None:
    engine = build_engine(num_blocks=2)
    put(engine, ask("a", [1] * 60, max_tokens=100))
    events = run_out(engine)
    assert len(events) == 4
    assert events[-1].finish is FinishReason.LENGTH


def test_forced_tokens_are_computed_and_the_next_has_their_number() -> None:
    engine = build_engine()
    put(engine, ask("whole", range(50), max_tokens=6, temperature=1.0))
    whole = [event.token for event in run_out(engine)]
    put(engine, ask("rest", range(50), max_tokens=6, temperature=1.0, output_tokens=whole[:4]))
    assert [(event.index, event.token) for event in run_out(engine)] == [(4, whole[4]), (5, whole[5])]


def test_a_prefill_leg_draws_one_token_and_rests_with_its_blocks() -> None:
    engine = build_engine(num_blocks=3)
    request = ask("leg", range(96), max_tokens=50)
    engine.reserve(request, growth_tokens=0)
    engine.start(request.id, attempt=Attempt(3), max_draws=1)
    (event,) = run_out(engine)
    assert (event.attempt, event.index, event.finish) == (3, 0, None)
    assert engine.ledger().entries == (LedgerEntry(request.id, "resting", 0.0, (0, 1, 2)),)


def test_layers_are_announced_with_their_batch() -> None:
    announced: list[tuple[int, range]] = []
    engine = build_engine(token_budget=32, on_layers=lambda batch, layers: announced.append((batch.num_tokens, layers)))
    put(engine, ask("a", range(40)))
    step(engine)
    step(engine)
    assert announced == [(32, range(2)), (32, range(2, 3)), (8, range(2)), (8, range(2, 3))]


# The prefix cache.


def test_a_second_identical_prompt_computes_only_what_follows_the_hit() -> None:
    engine = build_engine()
    put(engine, ask("a", range(80)))
    first = [event.token for event in run_out(engine)]
    reservation = engine.reserve(ask("b", range(80)), growth_tokens=1)
    assert (reservation.table, reservation.cached_tokens) == ((0, 1, 3), 64)
    engine.start(RequestId("b"), attempt=ONE)
    assert step(engine).record.num_prompt_tokens == 16
    engine.release(RequestId("a"))
    put(engine, ask("c", range(80)))
    events = run_out(engine)
    assert [event.token for event in events if event.request == "c"] == first


def test_a_full_hit_still_computes_the_last_token() -> None:
    engine = build_engine()
    put(engine, ask("a", range(64)))
    run_out(engine)
    reservation = engine.reserve(ask("b", range(64)), growth_tokens=1)
    assert (reservation.table, reservation.cached_tokens) == ((0, 3, 4), 32)


def test_decoded_tokens_are_found_by_the_next_turn() -> None:
    engine = build_engine()
    put(engine, ask("a", range(60), max_tokens=10))
    answer = [event.token for event in run_out(engine)]
    assert engine.reserve(ask("b", [*range(60), *answer, 5]), growth_tokens=1).cached_tokens == 64


def test_tenants_with_different_salts_share_nothing() -> None:
    engine = build_engine()
    put(engine, ask("a", range(64), cache_salt=b"one"))
    run_out(engine)
    assert engine.reserve(ask("b", range(64), cache_salt=b"two"), growth_tokens=1).cached_tokens == 0
    assert engine.reserve(ask("c", range(64), cache_salt=b"one"), growth_tokens=1).cached_tokens == 32


def test_a_hit_is_aligned_to_the_peers_block_size() -> None:
    engine = build_engine()
    put(engine, ask("a", [1] * 120))
    run_out(engine)
    assert engine.reserve(ask("b", [1] * 120), growth_tokens=1, align_tokens=64).cached_tokens == 64


def test_a_purged_prefix_is_computed_again() -> None:
    engine = build_engine()
    put(engine, ask("a", range(64)))
    run_out(engine)
    engine.purge(engine.ledger().entries[0].blocks)
    assert engine.reserve(ask("b", range(64)), growth_tokens=1).cached_tokens == 0


def test_a_purged_block_is_not_published_again_by_those_who_hold_it() -> None:
    engine = build_engine()
    put(engine, ask("a", range(80)))
    run_out(engine)
    put(engine, ask("b", range(80)))
    engine.purge(engine.ledger().entries[0].blocks[:1])
    run_out(engine)
    assert engine.reserve(ask("c", range(80)), growth_tokens=1).cached_tokens == 0


def test_the_prompt_of_a_request_that_failed_is_not_published() -> None:
    engine = build_engine()
    engine.runner = Faulty(engine, at="a")
    put(engine, ask("a", range(64)))
    step(engine)
    assert engine.reserve(ask("b", range(64)), growth_tokens=1).cached_tokens == 0


def test_what_a_failed_request_computed_before_is_found_by_nobody() -> None:
    engine = build_engine(token_budget=32)
    put(engine, ask("bad", range(80)))
    step(engine)
    assert engine.reserve(ask("found", range(80)), growth_tokens=1).cached_tokens == 32
    engine.runner = Faulty(engine, at="bad")
    step(engine)
    assert engine.reserve(ask("spared", range(80)), growth_tokens=1).cached_tokens == 0
    assert engine.audit() == ()


# Attaching.


def test_an_attached_request_decodes_without_computing_a_prompt_token() -> None:
    engine = build_engine()
    engine.reserve(ask("a", range(50), max_tokens=3), growth_tokens=3)
    assert engine.attach(RequestId("a"), 5, attempt=Attempt(2)) is None
    result = step(engine)
    assert (result.record.num_prompt_tokens, result.record.num_decode_tokens) == (0, 1)
    assert result.batch.chunks[0].tokens == (5,)
    assert (result.events[0].index, result.events[0].attempt) == (1, 2)


def test_attaching_publishes_the_full_blocks_of_the_prompt() -> None:
    engine = build_engine()
    engine.reserve(ask("a", range(80)), growth_tokens=1)
    assert engine.reserve(ask("b", range(80)), growth_tokens=1).cached_tokens == 0
    engine.attach(RequestId("a"), 5, attempt=ONE)
    assert engine.reserve(ask("c", range(80)), growth_tokens=1).cached_tokens == 64


def test_a_first_token_that_ends_the_answer_starts_no_decode() -> None:
    engine = build_engine()
    engine.reserve(ask("stop", range(5), stop_ids=[9]), growth_tokens=1)
    engine.reserve(ask("length", range(5), max_tokens=1), growth_tokens=1)
    assert engine.attach(RequestId("stop"), 9, attempt=ONE) is FinishReason.STOP
    assert engine.attach(RequestId("length"), 8, attempt=ONE) is FinishReason.LENGTH
    assert engine.step() is None
    assert {entry.phase for entry in engine.ledger().entries} == {"resting"}


def test_a_request_that_is_unknown_or_runs_already_cannot_be_started() -> None:
    engine = build_engine()
    with pytest.raises(LookupError):
        engine.start(RequestId("nobody"), attempt=ONE)
    with pytest.raises(LookupError):
        engine.attach(RequestId("nobody"), 1, attempt=ONE)
    put(engine, ask("a", [1]))
    with pytest.raises(ValueError, match="a cannot go from running to running"):
        engine.attach(RequestId("a"), 1, attempt=ONE)


# Running out of blocks.


def test_the_youngest_is_preempted_and_its_answer_stays_the_same() -> None:
    roomy, tight = build_engine(num_blocks=64), build_engine(num_blocks=5)
    answers = []
    for engine in (roomy, tight):
        put(engine, ask("old", range(31), max_tokens=70))
        put(engine, ask("young", range(40, 70), max_tokens=70))
        answers.append(tokens_by_request(drain(engine)))
    assert answers[0] == answers[1]
    assert counts(tight)[2] == 0


def test_a_preempted_request_is_computed_again_with_its_tokens_forced() -> None:
    engine = build_engine(num_blocks=5)
    put(engine, ask("old", range(31), max_tokens=70))
    put(engine, ask("young", range(40, 70), max_tokens=70))
    results = drain(engine)
    (when,) = [i for i, result in enumerate(results) if result.preempted]
    assert results[when].preempted == ("young",)
    assert sizes(results[when]) == {"old": 1}
    resumed = next(result for result in results[when:] if "young" in sizes(result))
    chunk = resumed.batch.chunks[0]
    assert (chunk.start, chunk.end) == (32, 65)
    assert len(tokens_by_request(results[:when])["young"]) == 35


def test_nothing_new_is_admitted_while_a_preempted_request_waits() -> None:
    engine = build_engine(num_blocks=5)
    put(engine, ask("old", range(31), max_tokens=70))
    put(engine, ask("young", range(40, 70), max_tokens=70))
    while not step(engine).preempted:
        pass
    assert (engine.load().num_waiting, engine.load().queued_tokens) == (1, 65)
    with pytest.raises(Busy, match="preempted requests wait"):
        engine.reserve(ask("new", [1]), growth_tokens=1)
    assert engine.release(RequestId("young"))
    engine.reserve(ask("new", [1]), growth_tokens=1)


def test_a_lone_request_that_cannot_grow_waits_until_others_are_released() -> None:
    engine, roomy = build_engine(num_blocks=4), build_engine()
    put(engine, ask("a", range(31), max_tokens=60))
    engine.reserve(ask("b", range(60)), growth_tokens=1)
    before = drain(engine)
    assert engine.work.is_set() is False
    assert {entry.owner: entry.phase for entry in engine.ledger().entries} == {"a": "preempted", "b": "reserved"}
    engine.release(RequestId("b"))
    assert engine.work.is_set()
    after = drain(engine)
    assert after[0].preempted == ("a",)
    put(roomy, ask("a", range(31), max_tokens=60))
    assert tokens_by_request(before + after) == tokens_by_request(drain(roomy))


# Ending.


def test_release_is_idempotent_and_says_whether_the_request_was_known() -> None:
    engine = build_engine()
    engine.reserve(ask("a", range(80)), growth_tokens=1)
    assert [engine.release(RequestId("a")) for _ in range(3)] == [True, False, False]
    assert engine.release(RequestId("nobody")) is False
    assert counts(engine) == (64, 0, 0)


def test_blocks_released_during_a_step_are_freed_when_it_commits() -> None:
    during: list[object] = []

    def cancel(batch: Batch) -> None:
        assert batch.num_tokens == 40
        during.append(engine.release(RequestId("a")))
        during.append(engine.release(RequestId("a")))
        during.append(counts(engine))
        with pytest.raises(Busy, match="request a is being released"):
            engine.reserve(ask("a", range(40)), growth_tokens=1)

    engine = build_engine(on_run=cancel)
    put(engine, ask("a", range(40)))
    result = step(engine)
    assert during == [True, False, (62, 0, 2)]
    assert result.events == ()
    assert counts(engine) == (64, 0, 0)
    engine.reserve(ask("a", range(40)), growth_tokens=1)


def test_nobody_is_preempted_for_blocks_that_are_about_to_come_back() -> None:
    engine = build_engine(num_blocks=3)
    engine.reserve(ask("filling", range(40)), growth_tokens=1)
    put(engine, ask("running", range(30), max_tokens=80))
    engine.end(RequestId("filling"))
    results = list(iter(engine.step, None))
    assert (len(results), engine.work.is_set()) == (3, False)
    engine.release(RequestId("filling"))
    assert engine.work.is_set()
    assert step(engine).events[0].index == 3
    assert [result.preempted for result in results] == [()] * 3


def test_an_ended_request_runs_no_more_and_keeps_its_blocks_until_its_release() -> None:
    engine = build_engine(on_run=lambda _batch: engine.end(RequestId("a")))
    put(engine, ask("a", range(40)))
    assert step(engine).events == ()
    assert engine.step() is None
    assert counts(engine) == (62, 0, 2)
    with pytest.raises(Busy, match="request a is being released"):
        engine.reserve(ask("a", range(40)), growth_tokens=1)
    engine.end(RequestId("a"))
    assert engine.release(RequestId("a"))
    assert counts(engine) == (64, 0, 0)


def test_a_step_frees_only_what_it_may_have_touched_late() -> None:
    seen: list[tuple[int, int, int]] = []

    def cancel(batch: Batch) -> None:
        del batch
        engine.release(RequestId("idle"))
        seen.append(counts(engine))

    engine = build_engine(on_run=cancel)
    engine.reserve(ask("idle", range(40)), growth_tokens=1)
    put(engine, ask("a", range(40)))
    step(engine)
    assert seen == [(62, 0, 2)]


class Faulty:
    """A runner whose request `at` fails alone; everything else is the fake runner's."""

    depth = 1

    def __init__(self, engine: Engine, at: str) -> None:
        self._inner = engine.runner
        self._at = at
        self.kv, self.fingerprint, self.geometry = self._inner.kv, self._inner.fingerprint, self._inner.geometry

    def launch(self, batch: Batch, on_layers: OnLayers) -> Collect:
        drawn = self._inner.launch(batch, on_layers)().drawn
        fault = RequestFault("NaN in the logits")
        ran = Ran([fault if chunk.request == self._at else each for chunk, each in zip(batch.chunks, drawn, strict=True)])
        return lambda: ran


def test_one_requests_fault_leaves_the_others_their_tokens() -> None:
    engine = build_engine()
    engine.runner = Faulty(engine, at="bad")
    put(engine, ask("bad", [1]))
    put(engine, ask("good", [2]))
    result = step(engine)
    assert [(request, fault.code) for request, fault in result.faults] == [("bad", "request_fault")]
    assert [event.request for event in result.events] == ["good"]
    assert sizes(step(engine)) == {"good": 1}
    engine.release(RequestId("bad"))
    engine.release(RequestId("good"))
    assert counts(engine) == (64, 0, 0)


def test_an_engine_fault_flies_out_of_the_step() -> None:
    def fail(batch: Batch) -> None:
        raise EngineFault(f"no memory for {batch.num_tokens} tokens")

    engine = build_engine(on_run=fail)
    put(engine, ask("a", [1]))
    with pytest.raises(EngineFault, match="no memory for 1 tokens"):
        engine.step()


# Looking.


def test_the_ledger_tells_owner_phase_age_and_blocks() -> None:
    now = [10.0]
    engine = build_engine(clock=lambda: now[0])
    engine.reserve(ask("first", range(40)), growth_tokens=1)
    now[0] = 12.5
    put(engine, ask("second", range(20)))
    now[0] = 13.0
    assert engine.ledger().entries == (
        LedgerEntry(RequestId("first"), "reserved", 3.0, (0, 1)),
        LedgerEntry(RequestId("second"), "running", 0.5, (2,)),
    )


def test_the_load_counts_what_runs_waits_and_is_not_computed() -> None:
    engine = build_engine(token_budget=32)
    engine.reserve(ask("reserved", [1]), growth_tokens=1)
    put(engine, ask("short", [1], max_tokens=9))
    put(engine, ask("long", range(70)))
    assert engine.load() == Load(num_steps=0, num_running=2, num_waiting=1, queued_tokens=70)
    step(engine)
    assert engine.load() == Load(num_steps=1, num_running=2, num_waiting=1, queued_tokens=38)


def test_an_orphaned_block_is_found_in_the_block_table() -> None:
    engine = build_engine(num_blocks=8)
    engine._pool.reserve(RequestId("lost"), [], 2)
    assert engine.census() == Census(free=6, cached=0, referenced=2, orphaned=2, total=8)
    assert engine.ledger().entries[0].phase == "orphaned"
