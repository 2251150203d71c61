"""Where the milliseconds of one request went, as its client may ask to see it."""

from dataclasses import asdict, dataclass
from typing import Any

from twostep.core.bill import DecodeBill, PrefillBill

NO_PREFILL = PrefillBill(0.0, 0.0, 0.0, 0.0, 0, 0, 0)
NO_DECODE = DecodeBill(0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0)


@dataclass(slots=True)
class Timeline:
    """Moments of one request on the router's clock, in seconds; those of the last attempt where there are several."""

    arrived: float
    reserve_sent: float = 0.0
    reserved: float = 0.0
    first_token: float | None = None
    last_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Bill:
    """Durations in seconds.

    `queue + reserve + prefill + transfer_exposed + attach + other` is `ttft`: a prefill node draws the first token, so
    the first decode step comes after it. Where a decode node served alone, `prefill` is its own work on the prompt.
    `other` is the rest: the router's own time, the network, and earlier attempts.
    """

    queue: float
    reserve: float
    prefill: float
    transfer_hidden: float
    transfer_exposed: float
    attach: float
    first_decode_step: float
    per_token: float
    other: float
    ttft: float
    total: float
    bytes_moved: int
    prefill_computed_tokens: int
    decode_computed_tokens: int
    cached_tokens: int
    attempts: int
    prefill_node: str | None
    decode_node: str

    def as_json(self) -> dict[str, Any]:
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}


def cached_tokens(prefill: PrefillBill | None, decode_cached_tokens: int, num_prompt: int) -> int:
    """Return how many prompt tokens nobody had to compute: P's prefix hit, or D's where it served alone."""
    return min(num_prompt, prefill.cached_tokens if prefill else decode_cached_tokens)


def make_bill(
    times: Timeline,
    prefill: PrefillBill | None,
    decode: DecodeBill | None,
    *,
    num_tokens: int,
    cached: int,
    attempts: int,
    prefill_node: str | None,
    decode_node: str,
) -> Bill:
    """Return the bill of an answer of `num_tokens` tokens."""
    p, d = prefill or NO_PREFILL, decode or NO_DECODE
    first = times.last_token if times.first_token is None else times.first_token
    ttft = first - times.arrived
    reserve = max(0.0, times.reserved - times.reserve_sent - d.queue_s)
    work = p.compute_s if prefill_node else d.first_step_s
    parts = d.queue_s + p.queue_s + reserve + work + p.exposed_s + d.attach_s
    return Bill(
        queue=d.queue_s + p.queue_s,
        reserve=reserve,
        prefill=work,
        transfer_hidden=p.hidden_s,
        transfer_exposed=p.exposed_s,
        attach=d.attach_s,
        first_decode_step=d.first_step_s if prefill_node else 0.0,
        per_token=(times.last_token - first) / (num_tokens - 1) if num_tokens > 1 else 0.0,
        other=ttft - parts,
        ttft=ttft,
        total=times.last_token - times.arrived,
        bytes_moved=d.bytes_landed or p.bytes_sent,
        prefill_computed_tokens=p.computed_tokens,
        decode_computed_tokens=d.computed_prompt_tokens,
        cached_tokens=cached,
        attempts=attempts,
        prefill_node=prefill_node,
        decode_node=decode_node,
    )
