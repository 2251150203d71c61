"""What a high class gains from its priority, and what the low class loses by it, in one engine that is never idle."""

import time

from twostep.benchmarks.cpu_rows.one_engine import OneEngine
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, percentile
from twostep.benchmarks.harness.rows import Measured
from twostep.core.ids import RequestId
from twostep.core.request import ServiceLevel

HIGH = "high class among low prompts: TTFT p99"
LOW = "low class beside a high one: longest wait"
TOKEN_BUDGET = 256
LOW_AT_ONCE, LOW_TOKENS = 16, 512
HIGH_TOKENS, HIGH_EVERY = 128, 5
OUTPUT_TOKENS = 8
HIGH_LEVEL, SAME_LEVEL = ServiceLevel(priority=-1), ServiceLevel()


async def measure(effort: Effort) -> Outcomes:
    engine, num_high = OneEngine(token_budget=TOKEN_BUDGET), effort.pick(20, 5)
    rounds = [[Crowd(engine, level).run(num_high) for level in (HIGH_LEVEL, SAME_LEVEL)] for _ in range(1 + effort.rounds)][1:]
    (high, low), (high_beside, low_beside) = (list(zip(*side, strict=True)) for side in zip(*rounds, strict=True))
    return {HIGH: Measured(tuple(high), tuple(high_beside)), LOW: Measured(tuple(low), tuple(low_beside))}


class Crowd:
    """Sixteen low prompts at any time, and a high one after every fifth step."""

    def __init__(self, engine: OneEngine, high: ServiceLevel) -> None:
        self._engine = engine
        self._high = high
        self._sent: dict[RequestId, float] = {}
        self._highs: set[RequestId] = set()
        self._ttfts_s: dict[bool, list[float]] = {True: [], False: []}
        """By whether the request is of the high class."""

    def run(self, num_high: int) -> tuple[float, float]:
        """Return the high class's TTFT p99 and the longest that a low prompt waited for its first token, in milliseconds."""
        for _ in range(num_high):
            for _ in range(len(self._highs) + LOW_AT_ONCE - len(self._sent)):
                self._put(LOW_TOKENS, SAME_LEVEL)
            self._highs.add(self._put(HIGH_TOKENS, self._high))
            for _ in range(HIGH_EVERY):
                self._step()
        while self._sent:
            self._step()
        return 1e3 * percentile(self._ttfts_s[True], 99), 1e3 * max(self._ttfts_s[False])

    def _put(self, num_tokens: int, level: ServiceLevel) -> RequestId:
        (prompt,) = self._engine.prompts(1, num_tokens)
        request = self._engine.put(prompt, OUTPUT_TOKENS, level)
        self._sent[request] = time.perf_counter()
        return request

    def _step(self) -> None:
        events, now = self._engine.step(), time.perf_counter()
        for event in events:
            if event.index == 0:
                self._ttfts_s[event.request in self._highs].append(now - self._sent[event.request])
            if event.finish:
                self._engine.leave(event.request)
                del self._sent[event.request]
                self._highs.discard(event.request)


PRIORITY = Measurement((HIGH, LOW), measure)
