"""What one node does, measured while it serves: prefill by busy time, decode by how a step grows with its batch. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from twostep.autoscaler.config import RatesConfig
from twostep.autoscaler.demand import grown, grown_nodes
from twostep.autoscaler.seen import NodeCounters, Seen

PRIOR_STEPS = 200.0
"""How many steps what was configured, or is assumed, weighs against what is measured."""
DOUBLING_BATCH = 64.0
"""Until batches of different sizes have been seen, a step is taken to double when so many sequences join it."""
PRIOR_BATCHES = (0.0, 32.0)
LEAST_BUSY_S = 1.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """A decode step of n sequences takes `base_s + n * sequence_s`."""

    base_s: float
    sequence_s: float

    def at(self, batch: float) -> float:
        return self.base_s + batch * self.sequence_s


@dataclass(frozen=True, slots=True)
class Fit:
    """Sums of a weighted least-squares line through (batch, step time), weighted by steps; older ones fade."""

    weight: float = 0.0
    batch: float = 0.0
    time: float = 0.0
    batch_batch: float = 0.0
    batch_time: float = 0.0

    def faded(self, fade: float) -> "Fit":
        return Fit(*(fade * value for value in (self.weight, self.batch, self.time, self.batch_batch, self.batch_time)))

    def plus(self, weight: float, batch: float, time_s: float) -> "Fit":
        """Return the sums with `weight` more steps, of so many sequences and seconds each."""
        return Fit(
            self.weight + weight,
            self.batch + weight * batch,
            self.time + weight * time_s,
            self.batch_batch + weight * batch * batch,
            self.batch_time + weight * batch * time_s,
        )

    def line(self) -> StepTime | None:
        """Return the line; None when it would be no line."""
        spread = self.weight * self.batch_batch - self.batch * self.batch
        if spread <= 1e-9 * max(1.0, self.batch_batch * self.weight):
            return None
        slope = max(0.0, (self.weight * self.batch_time - self.batch * self.time) / spread)
        return StepTime(max(0.0, (self.time - slope * self.batch) / self.weight), slope)


@dataclass(frozen=True, slots=True)
class Rates:
    """What has been measured. Sums fade, so that quotients of them are averages of the last minutes of work."""

    busy_s: float = 0.0
    computed_tokens: float = 0.0
    steps: Fit = Fit()
    blocks_per_node: float = 0.0
    held_block_s: float = 0.0
    answers: float = 0.0
    moved_bytes: float = 0.0
    moved_tokens: float = 0.0
    handoffs: float = 0.0
    speed_sum: float = 0.0

    def prefill_tokens_per_s(self, config: RatesConfig) -> float | None:
        """Return what a busy prefill node computes; None while nobody knows."""
        return self.computed_tokens / self.busy_s if self.busy_s >= LEAST_BUSY_S else config.prefill_tokens_per_s

    def step_time(self, config: RatesConfig) -> StepTime | None:
        """Return how a decode step grows with its batch; None while nobody knows."""
        fit = self.steps
        if config.decode_step_s is not None and config.decode_sequence_s is not None:
            told = StepTime(config.decode_step_s, config.decode_sequence_s)
        elif fit.weight:
            batch, time_s = fit.batch / fit.weight, fit.time / fit.weight
            base_s = time_s / (1 + batch / DOUBLING_BATCH)
            told = StepTime(base_s, base_s / DOUBLING_BATCH)
        else:
            return None
        for batch in PRIOR_BATCHES:
            fit = fit.plus(PRIOR_STEPS / len(PRIOR_BATCHES), batch, told.at(batch))
        return fit.line()

    @property
    def block_s_per_request(self) -> float | None:
        """Return how many KV blocks a request takes, times how long (Little's law: those taken, by answers a second)."""
        return self.held_block_s / self.answers if self.answers >= 1 else None

    @property
    def bytes_per_token(self) -> float | None:
        """KV bytes that cross for each prompt token that is computed; None while nothing has crossed."""
        return self.moved_bytes / self.moved_tokens if self.moved_tokens and self.moved_bytes else None

    @property
    def path_bytes_per_s(self) -> float | None:
        """What the path out of a prefill node, or into a decode node, carries; None while nothing has crossed."""
        return self.speed_sum / self.handoffs if self.handoffs else None


def learn_rates(rates: Rates, before: Seen, now: Seen, *, fade: float, soon: float) -> Rates:
    """Return the rates with what nodes have done since `before`; `fade` is what is left of older sums, 0 to 1.

    `soon` is the same for KV that is held.
    """
    prefill = grown_nodes(before.prefill.counters, now.prefill.counters)
    decode = grown_nodes(before.decode.counters, now.decode.counters)
    computed = sum(node.computed_tokens for node in prefill)
    if computed:
        rates = replace(
            rates,
            busy_s=fade * rates.busy_s + sum(node.step_s for node in prefill),
            computed_tokens=fade * rates.computed_tokens + computed,
            moved_bytes=fade * rates.moved_bytes + sum(node.handoff_bytes for node in prefill),
            moved_tokens=fade * rates.moved_tokens + computed,
            handoffs=fade * rates.handoffs + sum(node.handoffs for node in prefill),
            speed_sum=fade * rates.speed_sum + sum(node.handoff_speed_sum for node in prefill),
        )
    return _learn_memory(_learn_steps(rates, decode, fade), before, now, soon)


def _learn_steps(rates: Rates, decode: Sequence[NodeCounters], fade: float) -> Rates:
    # Steps that compute a prompt, where a decode node serves alone, say nothing about decode steps.
    pure = [node for node in decode if node.decoded_tokens and not node.computed_tokens and node.steps]
    if not pure:
        return rates
    steps = rates.steps.faded(fade)
    for node in pure:
        steps = steps.plus(node.steps, node.decoded_tokens / node.steps, node.step_s / node.steps)
    return replace(rates, steps=steps)


def _learn_memory(rates: Rates, before: Seen, now: Seen, fade: float) -> Rates:
    taken = [_taken_blocks(seen) for seen in (before, now)]
    answers = sum(grown(before.routers[uid].answers, new.answers) for uid, new in now.routers.items() if uid in before.routers)
    return replace(
        rates,
        blocks_per_node=max((node.total_blocks for node in now.decode.counters.values()), default=rates.blocks_per_node),
        held_block_s=fade * rates.held_block_s + sum(taken) / 2 * max(0.0, now.at_s - before.at_s),
        answers=fade * rates.answers + answers,
    )


def _taken_blocks(seen: Seen) -> float:
    return sum(node.total_blocks - node.free_blocks for node in seen.decode.counters.values())
