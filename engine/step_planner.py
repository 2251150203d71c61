"""Prepares each step: resumes, ranks, budgets, preempts. Owns what is carried from step to step: costs, and tenants' turns.

Not safe for threads by itself: the engine's lock guards it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from twostep.core.ids import RequestId
from twostep.engine.batch import Batch
from twostep.engine.block_pool import BlockPool
from twostep.engine.config import EngineConfig
from twostep.engine.preemption import SparePolicy, Tenure, choose_victim
from twostep.engine.ranking import Ranking, RankPolicy
from twostep.engine.scheduler import Blocks, Candidate, Limits, Run, StepPlan, plan_step
from twostep.engine.sequence import Phase, Sequence
from twostep.engine.sequence_table import SequenceTable
from twostep.engine.step_cost import StepBounds, StepMeter, prefill_budget
from twostep.engine.tenant_turns import Turns


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to run, who lost its blocks for it, and how many tokens the step might have had."""

    runs: tuple[Run, ...]
    preempted: tuple[RequestId, ...]
    token_budget: int


class StepPlanner:
    """Plans the steps of the sequences in a table, by their own clock's time."""

    def __init__(self, sequences: SequenceTable, pool: BlockPool, config: EngineConfig) -> None:
        self._sequences = sequences
        self._pool = pool
        self._config = known = config.scheduling
        self._limits = Limits(config.block_tokens, config.min_prefill_tokens, known.max_wait_s, known.turn_tokens)
        self._bounds = StepBounds(config.token_budget, config.min_prefill_tokens)
        self._rank_policy = RankPolicy(known.urgent_s, known.aging_s)
        self._sparing = SparePolicy(known.min_run_tokens, known.max_preemptions)
        self._meter = StepMeter()
        self._turns = Turns()

    def next_step(self, now: float) -> NextStep:
        """Return the next step, for which blocks have been given back to whom they were taken from, and taken from others."""
        ranking = self.ranking(now)
        self._resume(ranking)
        preempted: list[RequestId] = []
        budget, plan = self._plan(ranking)
        if plan.num_lacking and self._sequences.is_any_flying:
            # Who gives blocks up is decided when it is known what launched steps bring: some may end, and give back theirs.
            return NextStep((), (), budget)
        while plan.num_lacking and (victim := choose_victim(self._tenures(ranking), self._sparing)):
            self._sequences.preempt(self._sequences[victim])
            preempted.append(victim)
            budget, plan = self._plan(ranking)
        self._turns = plan.turns
        for run in plan.runs:
            self._sequences[run.request].served_at = now
        return NextStep(plan.runs, tuple(preempted), budget)

    def learn(self, batch: Batch, duration_s: float) -> None:
        """Note how long a step has taken."""
        num_decodes = sum(len(chunk.tokens) == 1 for chunk in batch.chunks)
        self._meter.record(num_decodes, batch.num_tokens - num_decodes, duration_s)

    def ranking(self, now: float) -> Ranking:
        """Return what ranks requests at this moment."""
        return Ranking(now, self._meter.cost.prefill_token_s, self._rank_policy)

    def hopeless(self, now: float) -> list[RequestId]:
        """Return the requests that have drawn nothing yet and cannot by their deadlines, if such ones are to be refused."""
        if self._config.hopeless == "serve_last":
            return []
        unanswered = [
            one
            for one in self._sequences.select(Phase.RUNNING, Phase.PREEMPTED)
            if one.num_tokens == len(one.request.tokens) and one.num_pending > 1
        ]
        ranking = self.ranking(now)
        return [one.request.id for one in unanswered if ranking.is_hopeless(one.claim, one.num_pending)]

    def _resume(self, ranking: Ranking) -> None:
        """Give blocks back by rank, to none before all better ones have theirs."""
        for sequence in sorted(self._sequences.preempted(), key=lambda one: ranking.rank(one.claim, one.num_pending)):
            spare_blocks = self._config.resume_spare_blocks if self._sequences.running() else 0
            if not self._sequences.restore(sequence, spare_blocks=spare_blocks):
                return

    def _plan(self, ranking: Ranking) -> tuple[int, StepPlan]:
        """Return how many tokens the step may have, and the plan."""
        running = self._sequences.launchable()
        decoding = [one for one in running if one.num_pending == 1]
        candidates = [self._candidate(one, ranking) for one in running]
        num_decodes = len(decoding)
        budget = prefill_budget(self._meter.cost, num_decodes, self._step_s(decoding), self._bounds)
        blocks = Blocks(self._pool.num_available, self._sequences.num_coming_blocks)
        absent = {one.request.level.tenant for one in self._sequences.preempted()}
        plan = plan_step(candidates, budget, self._limits, blocks, turns=self._turns, absent=absent)
        return num_decodes + budget, plan

    def _step_s(self, decoding: Iterable[Sequence]) -> float:
        """Return how long the next step may take, by the strictest wish among those who wait for their next tokens."""
        usual_s = self._config.tpot_target_s
        wishes = (one.request.level.tpot_s or usual_s for one in decoding)
        return self._config.step_share * min(wishes, default=usual_s)

    def _candidate(self, sequence: Sequence, ranking: Ranking) -> Candidate:
        """Decodes all run, in order of arrival: nothing but that is asked of them, step by step."""
        num_computed, num_tokens = sequence.num_launched, sequence.num_expected
        num_pending = num_tokens - num_computed
        return Candidate(
            sequence.request.id,
            num_computed,
            num_tokens,
            self._sequences.num_slots(sequence),
            (False, 0, 0, 0, sequence.arrival) if num_pending == 1 else ranking.rank(sequence.claim, num_pending),
            sequence.request.level.tenant,
            ranking.now - sequence.served_at,
        )

    def _tenures(self, ranking: Ranking) -> Iterator[Tenure]:
        for one in self._sequences.select(Phase.RUNNING):
            yield Tenure(
                one.request.id,
                one.arrival,
                ranking.aged_priority(one.claim),
                self._sequences.num_lost_blocks(one),
                one.num_tokens - one.num_when_admitted,
                one.num_preemptions,
                is_paused=one.is_paused,
                # A leg that draws no more here is for another node: its blocks are being sent.
                is_transferred=one.draws_left is not None,
            )
