"""What Serve costs a request: time to the first token, time per token, output of many, CPU; and memory of the cluster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.benchmarks.ray_serve_rows.stand import Stand, standing
from twostep.benchmarks.router_rows import prompts
from twostep.benchmarks.router_rows.load import Result
from twostep.benchmarks.router_rows.stand import Server, send

MAX_TOKENS = 100
PROMPT_CHARACTERS = 400
AT_ONCE = 16
DOORS: Mapping[str, Callable[[Stand], Server]] = {
    "through Serve's proxy": lambda stand: stand.proxied,
    "at the router's own door": lambda stand: stand.direct,
}
TTFT, PER_TOKEN, OUTPUT, CPU = (
    "TTFT p50",
    "time per token",
    f"output, {AT_ONCE} at a time",
    f"CPU per request of {MAX_TOKENS} tokens",
)
MEMORY = "memory of an idle cluster"


@dataclass(frozen=True, slots=True)
class Figures:
    """One door's figures of one round."""

    ttft_ms: float
    per_token_ms: float
    tokens_per_s: float
    cpu_ms: float
    num_failed: int


async def measure(effort: Effort) -> Outcomes:
    async with standing() as stand:
        ours_mb, peer_mb = (server.proportional_bytes() / 1e6 for server in (stand.proxied, stand.up))
        memory = Measured((ours_mb,), (peer_mb,), note="Ray's own processes included")
        doors = {"up": stand.up, **{name: door(stand) for name, door in DOORS.items()}}
        rounds = [
            {name: await _round(server, effort, number) for name, server in doors.items()}
            for number in range(effort.rounds + 1)
        ]
    # The first round warms up.
    return {MEMORY: memory, **{row: outcome for name in DOORS for row, outcome in _rows(name, rounds[1:]).items()}}


async def _round(server: Server, effort: Effort, number: int) -> Figures:
    count = effort.pick(8, 4)
    one = await send(server, _bodies(server, count, number))
    before_s = server.cpu_s()
    many = await send(server, _bodies(server, effort.pick(32, 16), 500 + number), at_once=AT_ONCE)
    num_answers = len(many.total_s)
    return Figures(
        ttft_ms=median(one.ttft_s) * 1000,
        per_token_ms=median(_per_token_s(one)) * 1000,
        tokens_per_s=AT_ONCE * MAX_TOKENS / (sum(many.total_s) / num_answers),
        cpu_ms=(server.cpu_s() - before_s) * 1000 / num_answers,
        num_failed=one.num_failed + many.num_failed,
    )


def _per_token_s(result: Result) -> list[float]:
    return [(total - first) / (MAX_TOKENS - 1) for first, total in zip(result.ttft_s, result.total_s, strict=True)]


def _rows(door: str, rounds: list[dict[str, Figures]]) -> Outcomes:
    num_failed = sum(one[door].num_failed for one in rounds)

    def row(read: Callable[[Figures], float]) -> Measured:
        return Measured(tuple(read(one[door]) for one in rounds), tuple(read(one["up"]) for one in rounds), num_failed)

    return {
        f"{TTFT}, {door}": row(lambda one: one.ttft_ms),
        f"{PER_TOKEN}, {door}": row(lambda one: one.per_token_ms),
        f"{OUTPUT}, {door}": row(lambda one: one.tokens_per_s),
        f"{CPU}, {door}": row(lambda one: one.cpu_ms),
    }


def _bodies(server: Server, count: int, seed: int) -> list[str]:
    texts = [prompts.text(PROMPT_CHARACTERS, 10_000 * seed + number) for number in range(count)]
    return [prompts.chat(server.model, text, MAX_TOKENS) for text in texts]


OVERHEAD = Measurement((*(f"{what}, {door}" for door in DOORS for what in (TTFT, PER_TOKEN, OUTPUT, CPU)), MEMORY), measure)
