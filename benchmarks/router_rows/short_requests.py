"""What the router adds to the time to the first token, and the CPU that a request takes, beside peers and a direct call."""

from collections.abc import Sequence

from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, percentile
from twostep.benchmarks.harness.rows import Measured
from twostep.benchmarks.router_rows import prompts
from twostep.benchmarks.router_rows.stand import Server, Stand, send, standing

ADDED_P50 = "TTFT added to a direct call, p50"
ADDED_P99 = "TTFT added to a direct call, p99"
CPU = "CPU per request, 200 in, 100 out, streamed"
PROMPT_CHARACTERS = 1000
"""About 200 tokens of SmolLM2."""


async def measure(effort: Effort) -> Outcomes:
    async with standing() as stand:
        servers = [stand.direct, stand.ours, *stand.peers]
        added, failed = await _added_ttft(stand, servers, effort)
        cpu, cpu_failed = await _cpu(servers[1:], effort)
    names = [peer.name for peer in stand.peers]
    return {
        ADDED_P50: _outcome(
            [low for low, _ in added["ours"]], {name: [low for low, _ in added[name]] for name in names}, failed
        ),
        ADDED_P99: _outcome(
            [high for _, high in added["ours"]], {name: [high for _, high in added[name]] for name in names}, failed
        ),
        CPU: _outcome(cpu["ours"], {name: cpu[name] for name in names}, cpu_failed),
    }


async def _added_ttft(
    stand: Stand, servers: Sequence[Server], effort: Effort
) -> tuple[dict[str, list[tuple[float, float]]], int]:
    """Return p50 and p99 in ms, each less the direct call's of the same round, by server and round; and our failures."""
    added: dict[str, list[tuple[float, float]]] = {server.name: [] for server in servers}
    num_failed = 0
    for number in range(effort.rounds + 1):
        told = {}
        for server in servers:
            bodies = _bodies(server, effort.pick(200, 60), max_tokens=4, seed=number)
            result = await send(server, bodies)
            told[server.name] = (percentile(result.ttft_s, 50) * 1000, percentile(result.ttft_s, 99) * 1000)
            num_failed += result.num_failed if server is stand.ours else 0
        if number:
            low, high = told["direct"]
            for name, (server_low, server_high) in told.items():
                added[name].append((server_low - low, server_high - high))
    return added, num_failed


async def _cpu(servers: Sequence[Server], effort: Effort) -> tuple[dict[str, list[float]], int]:
    """Return the CPU in ms per request, by server and round; and our failures."""
    cpu: dict[str, list[float]] = {server.name: [] for server in servers}
    num_failed = 0
    for number in range(effort.rounds + 1):
        for server in servers:
            bodies = _bodies(server, effort.pick(160, 64), max_tokens=100, seed=1000 + number)
            before_s = server.cpu_s()
            result = await send(server, bodies, at_once=16)
            used_ms = (server.cpu_s() - before_s) * 1000 / len(bodies)
            num_failed += result.num_failed if server.name == "ours" else 0
            if number:
                cpu[server.name].append(used_ms)
    return cpu, num_failed


def _bodies(server: Server, count: int, *, max_tokens: int, seed: int) -> list[str]:
    texts = [prompts.text(PROMPT_CHARACTERS, 10_000 * seed + number) for number in range(count)]
    return [prompts.chat(server.model, text, max_tokens) for text in texts]


def _outcome(ours: list[float], peers: dict[str, list[float]], num_failed: int) -> Measured:
    """The first peer is the row's; all are told in its note."""
    first = next(iter(peers.values()), [])
    note = ", ".join(f"{name} {sorted(values)[len(values) // 2]:.2f}" for name, values in peers.items())
    return Measured(tuple(ours), tuple(first), num_failed, note or "no peer is named in TWOSTEP_ROUTER_PEERS")


SHORT_REQUESTS = Measurement((ADDED_P50, ADDED_P99, CPU), measure)
