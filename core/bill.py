"""Where a request's time went. Durations only: no clock of one machine is compared with another's."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillBill:
    """P's part, in seconds, tokens and bytes.

    `exposed_s` is the transfer time left after the first token was drawn, `handover_s` the time from the last write's end
    until D has answered that it took over.
    """

    queue_s: float
    compute_s: float
    transfer_s: float
    exposed_s: float
    cached_tokens: int
    computed_tokens: int
    bytes_sent: int
    handover_s: float = 0.0

    @property
    def hidden_s(self) -> float:
        """Transfer time that passed while layers were still being computed."""
        return max(0.0, self.transfer_s - self.exposed_s)


@dataclass(frozen=True, slots=True)
class DecodeBill:
    """D's part, in seconds, tokens and bytes.

    `cached_tokens` is the prefix D already held; `computed_prompt_tokens` is 0 unless D served alone or had to recompute.
    """

    queue_s: float
    attach_s: float
    first_step_s: float
    decode_s: float
    num_steps: int
    cached_tokens: int
    computed_prompt_tokens: int
    bytes_landed: int
