"""What the next step computes: decodes first, then as much prefill as the token budget leaves. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from twostep.core.ids import RequestId


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running sequence as the scheduler sees it; `num_slots` counts the tokens its blocks can hold."""

    request: RequestId
    arrival: int
    num_computed: int
    num_tokens: int
    num_slots: int

    @property
    def num_pending(self) -> int:
        return self.num_tokens - self.num_computed


@dataclass(frozen=True, slots=True)
class Limits:
    block_tokens: int
    token_budget: int
    min_prefill_tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """Compute the next `num_tokens` of `request`, after giving it `num_new_blocks` more blocks."""

    request: RequestId
    num_tokens: int
    num_new_blocks: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The runs of one step; or, when blocks are short, the one to `preempt` before planning again."""

    runs: tuple[Run, ...]
    preempt: RequestId | None = None


def plan_step(candidates: Sequence[Candidate], limits: Limits, *, num_available: int, num_coming: int = 0) -> StepPlan:
    """Return the next step's runs, which need at most `num_available` new blocks.

    `num_coming` blocks will be available soon without any preemption: the runs that need them wait for those.

    A sequence that lacks one token is a decode: all decodes run. Prompts share what is left of the token budget in order
    of arrival, and together get at least `min_prefill_tokens`. When blocks stay short the youngest is preempted.
    """
    by_arrival = sorted(candidates, key=lambda candidate: candidate.arrival)
    decodes = [candidate for candidate in by_arrival if candidate.num_pending == 1]
    prefills = [candidate for candidate in by_arrival if candidate.num_pending > 1]
    budget = max(limits.token_budget - len(decodes), limits.min_prefill_tokens)
    runs = tuple(_run(one, 1, limits) for one in decodes) + _share(budget, prefills, limits)
    if sum(run.num_new_blocks for run in runs) > num_available + num_coming:
        return StepPlan((), preempt=by_arrival[-1].request)
    return StepPlan(_fitting(runs, num_available))


def _fitting(runs: Sequence[Run], num_available: int) -> tuple[Run, ...]:
    fitting: list[Run] = []
    for run in runs:
        if run.num_new_blocks <= num_available:
            fitting.append(run)
            num_available -= run.num_new_blocks
    return tuple(fitting)


def _share(budget: int, prefills: Sequence[Candidate], limits: Limits) -> tuple[Run, ...]:
    runs: list[Run] = []
    for prefill in prefills:
        if budget == 0:
            break
        runs.append(_run(prefill, min(prefill.num_pending, budget), limits))
        budget -= runs[-1].num_tokens
    return tuple(runs)


def _run(candidate: Candidate, num_tokens: int, limits: Limits) -> Run:
    lacking = candidate.num_computed + num_tokens - candidate.num_slots
    return Run(candidate.request, num_tokens, max(0, -(-lacking // limits.block_tokens)))
