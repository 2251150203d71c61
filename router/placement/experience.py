"""What this router has measured of its own requests: how long answers are, and what a handoff takes beside the work. Pure."""

from twostep.core.turnover import HoldMeter
from twostep.router.bill import Bill

UNMEASURED_OUTPUT_TOKENS = 128.0


class Experience:
    """Learns from the bills of requests that ended well; the latest count most."""

    def __init__(self) -> None:
        self._output_tokens = HoldMeter()
        self._pair_s = HoldMeter()
        self._alone_s = HoldMeter()
        self._uncached = HoldMeter()

    def learn(self, bill: Bill, num_prompt: int, num_tokens: int) -> None:
        """Take up one answer. One that took several attempts says little about any of them."""
        self._output_tokens.record(1, num_tokens)
        self._uncached.record(num_prompt, 1 - bill.cached_tokens / num_prompt)
        if bill.attempts == 1:
            overhead_s = bill.reserve + bill.handover + bill.attach + max(0.0, bill.other)
            (self._pair_s if bill.prefill_node else self._alone_s).record(1, overhead_s)

    @property
    def output_tokens(self) -> float:
        """How many tokens an answer has."""
        mean = self._output_tokens.mean_s
        return UNMEASURED_OUTPUT_TOKENS if mean is None else mean

    @property
    def uncached_share(self) -> float:
        """Which part of a prompt somebody has to compute."""
        mean = self._uncached.mean_s
        return 1.0 if mean is None else mean

    @property
    def pair_overhead_s(self) -> float:
        """What a handoff takes until the first token, beside queues, computation and transfer."""
        return self._pair_s.mean_s or 0.0

    @property
    def alone_overhead_s(self) -> float:
        """The same where a decode node serves alone."""
        return self._alone_s.mean_s or 0.0
