"""What the next step computes: decodes first, then as much of the waiting prompts as the budget leaves. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from twostep.core.ids import RequestId
from twostep.engine.ranking import Rank
from twostep.engine.tenant_turns import NO_TURNS, Turns, share_out


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running sequence as the scheduler sees it; `num_slots` counts the tokens its blocks can hold.

    `rank` orders prompts within their tenant; `waited_s` is for how long nothing of it was computed.
    """

    request: RequestId
    num_computed: int
    num_tokens: int
    num_slots: int
    rank: Rank
    tenant: str = ""
    waited_s: float = 0.0

    @property
    def num_pending(self) -> int:
        return self.num_tokens - self.num_computed

    @property
    def is_decode(self) -> bool:
        return self.num_pending == 1


@dataclass(frozen=True, slots=True)
class Limits:
    """A prompt of which nothing was computed for `max_wait_s` gets `min_prefill_tokens` whatever its rank.

    `turn_tokens` is a tenant's turn, see `tenant_turns`.
    """

    block_tokens: int
    min_prefill_tokens: int
    max_wait_s: float
    turn_tokens: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """Those that are free now, and those that come back soon without anybody giving up theirs."""

    num_available: int
    num_coming: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Compute the next `num_tokens` of `request`, after giving it `num_new_blocks` more blocks."""

    request: RequestId
    num_tokens: int
    num_new_blocks: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The runs of one step, and the tenants' turns after it. `num_lacking` blocks have to be given up before it can run."""

    runs: tuple[Run, ...]
    turns: Turns = NO_TURNS
    num_lacking: int = 0


def plan_step(
    candidates: Collection[Candidate],
    budget: int,
    limits: Limits,
    blocks: Blocks,
    *,
    turns: Turns = NO_TURNS,
    absent: Collection[str] = (),
) -> StepPlan:
    """Return the next step's runs: every decode, and `budget` tokens of the prompts that wait.

    Runs for which there are no blocks now wait for those that come back. Among prompts the one that has waited for longest
    comes first when that is too long; the others share by tenant, `absent` ones keeping their turns, then by rank.
    """
    decodes = [one for one in candidates if one.is_decode]
    prompts = sorted((one for one in candidates if not one.is_decode), key=lambda one: one.rank)
    grants, turns = _grant(prompts, budget, limits, turns, absent)
    runs = [_run(one, 1, limits) for one in sorted(decodes, key=lambda one: one.rank[-1])]
    runs += [_run(one, grants[one.request], limits) for one in prompts if grants[one.request]]
    num_lacking = sum(run.num_new_blocks for run in runs) - blocks.num_available - blocks.num_coming
    return StepPlan(tuple(_fitting(runs, blocks.num_available)), turns, max(0, num_lacking))


def _grant(
    prompts: Sequence[Candidate], budget: int, limits: Limits, turns: Turns, absent: Collection[str]
) -> tuple[Counter[RequestId], Turns]:
    """Return how many tokens of each prompt are computed; `prompts` are in the order of their ranks."""
    grants: Counter[RequestId] = Counter()
    starving = max(prompts, key=lambda one: one.waited_s, default=None)
    if starving and starving.waited_s > limits.max_wait_s:
        grants[starving.request] = min(limits.min_prefill_tokens, starving.num_pending, budget)
        budget -= grants[starving.request]
    queues: defaultdict[str, list[Candidate]] = defaultdict(list)
    for one in prompts:
        queues[one.tenant].append(one)
    wanted = {tenant: sum(one.num_pending - grants[one.request] for one in queue) for tenant, queue in queues.items()}
    shares = share_out(turns, wanted, absent, budget, limits.turn_tokens)
    for tenant, queue in queues.items():
        left = shares.tokens[tenant]
        for one in queue:
            granted = min(left, one.num_pending - grants[one.request])
            grants[one.request] += granted
            left -= granted
    return grants, shares.turns


def _fitting(runs: Iterable[Run], num_available: int) -> Iterator[Run]:
    for run in runs:
        if run.num_new_blocks <= num_available:
            num_available -= run.num_new_blocks
            yield run


def _run(candidate: Candidate, num_tokens: int, limits: Limits) -> Run:
    lacking = candidate.num_computed + num_tokens - candidate.num_slots
    return Run(candidate.request, num_tokens, max(0, -(-lacking // limits.block_tokens)))
