"""Steps under load, on a clock that moves by what each step costs: budgets, waits, tenants, preemption."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from twostep.core.ids import RequestId
from twostep.core.request import ServiceLevel, Timing
from twostep.engine.batch import Batch
from twostep.engine.config import SchedulingConfig
from twostep.engine.engine import Busy, StepResult
from twostep.engine.step_cost import StepCost
from twostep.tests.engine.fakes import ask, build_engine, drain, put, tokens_by_request

COST = StepCost(base_s=0.004, decode_row_s=0.0005, prefill_token_s=0.00025)


class Load:
    """An engine whose steps take what `cost` says, and what its steps computed."""

    def __init__(self, *, cost: StepCost = COST, scheduling: SchedulingConfig | None = None, **config: Any) -> None:
        self.now = 100.0
        self.cost = cost
        self.results: list[StepResult] = []
        known = {"scheduling": scheduling} if scheduling else {}
        self.engine = build_engine(clock=lambda: self.now, on_run=self._take_time, **known, **config)

    def _take_time(self, batch: Batch) -> None:
        num_decodes = sum(len(chunk.tokens) == 1 for chunk in batch.chunks)
        self.now += self.cost.decode_s(num_decodes) + self.cost.prefill_s(batch.num_tokens - num_decodes)

    def put(self, name: str, num_tokens: int, *, timing: Timing | None = None, **more: Any) -> None:
        """A prompt that shares nothing with any other."""
        first = sum(map(ord, name))
        prompt = [(first + place * (1 + first % 7)) % 97 for place in range(num_tokens)]
        put(self.engine, ask(name, prompt, **({"cache_salt": name.encode()} | more)), timing or Timing())

    def step(self) -> dict[str, int]:
        """Take a step; return how many tokens of each request it computed."""
        result = self.engine.step()
        assert result is not None
        self.results.append(result)
        for event in result.events:
            if event.finish:
                self.engine.release(event.request)
        return {chunk.request: len(chunk.tokens) for chunk in result.batch.chunks}

    def finish_order(self) -> list[str]:
        """Run to the end; return the requests in the order in which they drew their first tokens."""
        results = self.results + drain(self.engine)
        return [event.request for result in results for event in result.events if event.index == 0]


# The budget.


def test_a_step_with_decodes_keeps_within_its_share_of_the_target() -> None:
    """Each step of running streams takes four fifths of 100 ms at most, as soon as something was measured."""
    load = Load(num_blocks=400, token_budget=2000)
    for number in range(4):
        load.put(f"stream {number}", 10, max_tokens=60)
    for _ in range(5):
        load.step()
    load.put("long", 6000, max_tokens=2)
    sizes = [load.step()["long"] for _ in range(20)]
    durations = [result.record.duration_s for result in load.results[5:]]
    assert max(durations) <= 0.08 * 1.01
    # (80 ms - 4 ms - 4 * 0.5 ms) / 0.25 ms
    assert sizes[-1] == pytest.approx(296, abs=2)
    assert load.results[-1].record.token_budget == sizes[-1] + 4


def test_the_strictest_wish_among_running_streams_counts() -> None:
    load = Load(num_blocks=400, token_budget=2000)
    load.put("usual", 10, max_tokens=60)
    load.put("strict", 10, max_tokens=60, level=ServiceLevel(tpot_s=0.05))
    for _ in range(5):
        load.step()
    load.put("long", 6000, max_tokens=2)
    sizes = [load.step()["long"] for _ in range(10)]
    assert sizes[-1] == pytest.approx((0.04 - 0.005) / 0.00025, abs=2)


def test_prompts_alone_take_the_whole_budget_whatever_they_cost() -> None:
    load = Load(num_blocks=400, token_budget=500)
    load.put("long", 2000, max_tokens=2)
    assert [load.step() for _ in range(4)] == [{"long": 500}] * 4


def test_a_prompt_gets_on_however_dear_the_decodes_are() -> None:
    load = Load(num_blocks=400, token_budget=500, min_prefill_tokens=16, cost=StepCost(0.2, 0.01, 0.001))
    load.put("stream", 10, max_tokens=60)
    load.step()
    load.step()
    load.put("long", 160, max_tokens=2)
    sizes = [load.step().get("long") for _ in range(8)]
    assert sizes[-1] == 16


# Order and waiting.


def test_prompts_are_computed_by_what_is_left_of_their_time() -> None:
    load = Load(num_blocks=400, token_budget=100)
    load.put("warm", 100, max_tokens=1)
    load.step()
    load.put("patient", 400, max_tokens=1)
    load.put("hasty", 400, max_tokens=1, timing=Timing(age_s=3.0, remaining_s=0.7))
    load.put("wishing", 400, max_tokens=1, level=ServiceLevel(ttft_s=0.3))
    assert load.finish_order() == ["warm", "wishing", "hasty", "patient"]


def test_who_has_become_hopeless_is_served_last() -> None:
    load = Load(num_blocks=400, token_budget=100)
    load.put("warm", 100, max_tokens=1)
    load.step()
    load.put("hopeless", 400, max_tokens=1, timing=Timing(remaining_s=0.05))
    load.put("later", 400, max_tokens=1)
    assert load.engine.hopeless() == []
    assert load.finish_order() == ["warm", "later", "hopeless"]


def test_who_has_become_hopeless_is_named_where_it_is_to_be_refused() -> None:
    load = Load(num_blocks=400, token_budget=100, scheduling=SchedulingConfig(hopeless="refuse"))
    load.put("unmeasured", 100, max_tokens=1, timing=Timing(remaining_s=0.001))
    assert load.engine.hopeless() == []
    load.step()
    load.put("can do", 400, max_tokens=1, timing=Timing(remaining_s=0.11))
    load.put("cannot", 400, max_tokens=1, timing=Timing(remaining_s=0.09))
    load.put("late for its wish only", 400, max_tokens=1, level=ServiceLevel(ttft_s=0.01))
    assert load.engine.hopeless() == ["cannot"]
    load.step()
    assert load.engine.hopeless() == ["cannot"]


def test_the_longest_wait_of_a_prompt_is_bounded_whoever_comes() -> None:
    """A prompt of the lowest class under a flood of the highest: never two seconds, and a step, without a minimum of it."""
    load = Load(num_blocks=800, token_budget=200, min_prefill_tokens=10, scheduling=SchedulingConfig(aging_s=1e6))
    load.put("low", 100, max_tokens=1, level=ServiceLevel(priority=9))
    served: list[float] = [load.now]
    number = 0
    while len(served) < 11 and load.now < 200.0:
        while load.engine.load().queued_tokens < 400:
            number += 1
            load.put(f"high {number}", 150, max_tokens=1, level=ServiceLevel(priority=-9))
        before = load.now
        if "low" in load.step():
            served.append(before)
    assert len(served) == 11
    gaps = [later - earlier for earlier, later in pairwise(served)]
    step_s = COST.prefill_s(200)
    assert max(gaps) <= 2.0 + 2 * step_s
    assert min(gaps) > 2.0


@pytest.mark.parametrize(
    ("waiting", "coming", "passed_s"),
    [(ServiceLevel(priority=2), ServiceLevel(), 6.0), (ServiceLevel(), ServiceLevel(ttft_s=0.5), 3.0)],
    ids=["a low class", "no wish"],
)
def test_who_is_passed_by_new_ones_comes_first_as_soon_as_it_is_old_enough(
    waiting: ServiceLevel, coming: ServiceLevel, passed_s: float
) -> None:
    load = Load(num_blocks=800, token_budget=200, scheduling=SchedulingConfig(max_wait_s=1e6, aging_s=3.0))
    load.put("old", 600, max_tokens=1, level=waiting)
    began, number, computed = load.now, 0, dict[str, int]()
    while "old" not in computed and load.now < 200.0:
        number += 1
        load.put(f"new {number}", 200, max_tokens=1, level=coming)
        before, computed = load.now, load.step()
    assert computed == {"old": 200}
    assert before - began == pytest.approx(passed_s, abs=2 * COST.prefill_s(200))


def test_tenants_get_equal_parts_however_much_they_ask() -> None:
    load = Load(num_blocks=1000, token_budget=100, scheduling=SchedulingConfig(turn_tokens=150))
    for number in range(20):
        load.put(f"greedy {number}", 600, max_tokens=1, level=ServiceLevel(tenant="greedy"))
    load.put("modest", 1000, max_tokens=1, level=ServiceLevel(tenant="modest"))
    computed: Counter[str] = Counter()
    for _ in range(9):
        for name, num_tokens in load.step().items():
            computed[name.split()[0]] += num_tokens
    assert computed == {"greedy": 450, "modest": 450}


# Preemption.


def growing(load: Load, *names: str, **more: Any) -> None:
    for name in names:
        load.put(name, 60, max_tokens=200, **more)


def preempted(load: Load) -> list[str]:
    return [request for result in load.results for request in result.preempted]


def run(load: Load) -> dict[str, list[int]]:
    while load.engine.load().num_running or load.engine.load().num_waiting:
        load.step()
    return tokens_by_request(load.results)


def test_the_least_dear_gives_way_and_every_answer_stays_the_same() -> None:
    levels = {"cheap": 1, "usual": 0, "dear": -1}
    tight, roomy = Load(num_blocks=16), Load(num_blocks=400)
    for load in (tight, roomy):
        for name, priority in levels.items():
            growing(load, name, level=ServiceLevel(priority=priority))
    assert run(tight) == run(roomy)
    assert preempted(tight)[0] == "cheap"
    assert "dear" not in preempted(tight)
    assert tight.engine.census().referenced == 0


def test_a_paused_request_gives_way_before_all_others_and_returns_when_it_goes_on() -> None:
    tight, roomy = Load(num_blocks=16), Load(num_blocks=400)
    for load in (tight, roomy):
        growing(load, "paused", level=ServiceLevel(priority=-9))
        load.step()
        growing(load, "one", "two")
    assert tight.engine.pause(RequestId("paused"))
    while not preempted(tight):
        tight.step()
    assert preempted(tight) == ["paused"]
    while "one" in tight.engine.requests():
        tight.step()
    tight.engine.resume(RequestId("paused"))
    assert run(tight) == run(roomy)


def test_a_preempted_request_that_is_paused_lets_others_in() -> None:
    load = Load(num_blocks=9)
    growing(load, "one", "two")
    while not preempted(load):
        load.step()
    with pytest.raises(Busy, match="preempted requests wait"):
        load.put("new", 5, max_tokens=2)
    load.engine.pause(RequestId(preempted(load)[0]))
    load.put("new", 5, max_tokens=2)
    assert "new" in load.step()


@pytest.mark.parametrize(("min_run_tokens", "victim"), [(1, "young"), (110, "second")])
def test_who_has_just_got_its_blocks_keeps_them_for_a_while(min_run_tokens: int, victim: str) -> None:
    load = Load(num_blocks=17, scheduling=SchedulingConfig(min_run_tokens=min_run_tokens))
    growing(load, "first", "second")
    for _ in range(120):
        load.step()
    growing(load, "young")
    while not preempted(load):
        load.step()
    assert preempted(load) == [victim]


@pytest.mark.parametrize(("max_preemptions", "victim"), [(1, "first"), (2, "second")])
def test_who_was_preempted_often_enough_is_spared(max_preemptions: int, victim: str) -> None:
    load = Load(num_blocks=9, scheduling=SchedulingConfig(max_preemptions=max_preemptions))
    growing(load, "first")
    growing(load, "second", level=ServiceLevel(priority=1))
    load.engine._sequences[RequestId("second")].num_preemptions = 1
    while not preempted(load):
        load.step()
    assert preempted(load) == [victim]


@pytest.mark.parametrize(("spare_blocks", "is_resumed"), [(0, True), (1, True), (2, False)])
def test_a_request_is_resumed_beside_others_only_with_room_to_spare(spare_blocks: int, is_resumed: bool) -> None:
    """Of six blocks one is used, one is kept for its owner to grow, and three are needed."""
    load = Load(num_blocks=6, scheduling=SchedulingConfig(resume_spare_blocks=spare_blocks))
    load.put("running", 20, max_tokens=100)
    load.put("preempted", 60, max_tokens=100)
    load.engine._sequences.preempt(load.engine._sequences[RequestId("preempted")])
    assert ("preempted" in load.step()) is is_resumed


def test_with_nobody_beside_it_a_request_is_resumed_without_room_to_spare() -> None:
    load = Load(num_blocks=3, scheduling=SchedulingConfig(resume_spare_blocks=2))
    load.put("preempted", 60, max_tokens=30)
    load.engine._sequences.preempt(load.engine._sequences[RequestId("preempted")])
    assert "preempted" in load.step()


def test_age_survives_preemption() -> None:
    load = Load(num_blocks=9, scheduling=SchedulingConfig(aging_s=0.05))
    growing(load, "old")
    for _ in range(30):
        load.step()
    growing(load, "young")
    while not preempted(load):
        load.step()
    assert preempted(load) == ["young"]
    sequence = load.engine._sequences[RequestId("young")]
    assert (sequence.num_preemptions, sequence.born_at < load.now - 0.1) == (1, True)
