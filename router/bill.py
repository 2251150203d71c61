"""Where the milliseconds of one request went, as its client may ask to see it."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from twostep.core.bill import DecodeBill, PrefillBill

TTFT_PARTS = (
    *("accept", "tokenize", "place", "retries", "queue", "reserve"),
    *("prefill", "transfer_exposed", "handover", "attach", "other", "stream"),
)
"""The parts of a bill that add up to the time to the first token."""
NO_PREFILL = PrefillBill(0.0, 0.0, 0.0, 0.0, 0, 0, 0)
NO_DECODE = DecodeBill(0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Intake:
    """How a request came in: when it `arrived` on the router's clock, how many seconds it took to turn its prompt into tokens,
    how many it waited for nodes to come, and the name, trace and session that its client gave it."""

    arrived: float
    tokenize_s: float = 0.0
    queue_s: float = 0.0
    client_id: str = ""
    traceparent: str = ""
    session: str = ""


@dataclass(slots=True)
class Timeline:
    """Moments of one request on the router's clock, in seconds; those of the last attempt where there are several.

    `room_s` is how long it waited for room at the nodes, `place_s` how long the first choice of them took, `first_sent` when
    the first attempt began, `first_written` when the first tokens had been given to the client's connection, `ended` when the
    nodes had said their last words.
    """

    intake: Intake
    room_s: float = 0.0
    place_s: float = 0.0
    first_sent: float | None = None
    reserve_sent: float = 0.0
    reserved: float = 0.0
    first_token: float | None = None
    first_written: float | None = None
    last_token: float = 0.0
    ended: float | None = None

    def begin_attempt(self, now: float) -> None:
        self.reserve_sent = self.reserved = now
        self.first_sent = now if self.first_sent is None else self.first_sent


@dataclass(frozen=True, slots=True)
class Bill:
    """Durations in seconds.

    `TTFT_PARTS` add up to `ttft`: a prefill node draws the first token, so the first decode step comes after it. Where a
    decode node served alone, `prefill` is its own work on the prompt. Before it asks a node the router reads and checks
    (`accept`), applies the template and tokenizes (`tokenize`), and chooses nodes (`place`). `retries` are earlier attempts;
    where the answer had begun in one of them, all that it took. `queue` is all waiting, for nodes to come and on them.
    `handover` is the way of P's last word to D. `other` is the rest: messages between the router and the nodes. `stream` is
    from the first token to its text in the client's connection. `last_words` is how long the nodes' bills took after the
    last token.
    """

    accept: float
    tokenize: float
    place: float
    retries: float
    queue: float
    reserve: float
    prefill: float
    transfer_hidden: float
    transfer_exposed: float
    handover: float
    attach: float
    first_decode_step: float
    per_token: float
    other: float
    ttft: float
    total: float
    stream: float
    last_words: float
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
    p, d, intake = prefill or NO_PREFILL, decode or NO_DECODE, times.intake
    first = times.last_token if times.first_token is None else times.first_token
    written = first if times.first_written is None else times.first_written
    began = intake.arrived if times.first_sent is None else times.first_sent
    queue_s = intake.queue_s + times.room_s
    retries = max(0.0, min(times.reserve_sent, first) - began)
    on_nodes = first - began - retries
    parts = NOTHING if first < times.reserve_sent else _parts(times, p, d, on_nodes, has_prefill_node=prefill_node is not None)
    known = parts._asdict()
    return Bill(
        accept=max(0.0, began - intake.arrived - intake.tokenize_s - queue_s - times.place_s),
        tokenize=intake.tokenize_s,
        place=times.place_s,
        retries=retries,
        **{**known, "queue": parts.queue + queue_s},
        transfer_hidden=p.hidden_s,
        first_decode_step=d.first_step_s if prefill_node else 0.0,
        per_token=(times.last_token - first) / (num_tokens - 1) if num_tokens > 1 else 0.0,
        other=on_nodes - sum(known.values()),
        ttft=written - intake.arrived,
        total=max(written, times.last_token) - intake.arrived,
        stream=written - first,
        last_words=0.0 if times.ended is None else max(0.0, times.ended - times.last_token),
        bytes_moved=d.bytes_landed or p.bytes_sent,
        prefill_computed_tokens=p.computed_tokens,
        decode_computed_tokens=d.computed_prompt_tokens,
        cached_tokens=cached,
        attempts=attempts,
        prefill_node=prefill_node,
        decode_node=decode_node,
    )


def server_timing(bill: Bill) -> str:
    """Return the value of a Server-Timing header, in milliseconds: the parts of the time to the first token, it, the whole."""
    parts = [(part.replace("_", "-"), getattr(bill, part)) for part in TTFT_PARTS]
    return ", ".join(
        f"{name};dur={1000 * seconds:.3f}" for name, seconds in [*parts, ("ttft", bill.ttft), ("total", bill.total)]
    )


class _Parts(NamedTuple):
    """What the attempt that brought the first token took until then, in seconds; named as in the bill."""

    queue: float = 0.0
    reserve: float = 0.0
    prefill: float = 0.0
    transfer_exposed: float = 0.0
    handover: float = 0.0
    attach: float = 0.0


NOTHING = _Parts()
"""What is known of an attempt whose nodes are gone: the last attempt began after the first token."""


def _parts(times: Timeline, p: PrefillBill, d: DecodeBill, total: float, *, has_prefill_node: bool) -> _Parts:
    """Return what the nodes say, each part bounded by what is left of the `total` that the router has seen."""
    told = _Parts(
        queue=d.queue_s + p.queue_s,
        reserve=max(0.0, times.reserved - times.reserve_sent - d.queue_s),
        prefill=p.compute_s if has_prefill_node else d.first_step_s,
        transfer_exposed=p.exposed_s,
        # A round trip, of which half is on the way to the first token.
        handover=max(0.0, p.handover_s - d.attach_s) / 2,
        attach=d.attach_s,
    )
    left, fitted = total, {}
    for name, seconds in told._asdict().items():
        fitted[name] = max(0.0, min(seconds, left))
        left -= fitted[name]
    return _Parts(**fitted)
