"""The way of the last layer group: how long until D decodes, and how much was on D before it."""

from collections.abc import Mapping

from twostep.benchmarks.cluster.running import SMOLLM2_SHAPE, RunningCluster, running_cluster
from twostep.benchmarks.cluster.timings import Handover, Note, Step, handover_of, possible_share
from twostep.benchmarks.cluster.transport_peak import transport_peak
from twostep.benchmarks.handoff_rows.prompts import Prompts
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort
from twostep.benchmarks.harness.rows import Measured
from twostep.engine.config import EngineConfig

SMOLLM2 = "handover beyond the wire, SmolLM2, 2k prompt"
FAKE = "handover beyond the wire, fake model, 2k prompt"
HIDDEN = {
    256: "hidden share of the possible, 256 prompt",
    2048: "hidden share of the possible, 2k prompt",
    4096: "hidden share of the possible, 4k prompt",
}
DIGESTS = "digests in TTFT, SmolLM2, 2k prompt"
ENGINE = EngineConfig()
NUM_LAYERS, LAYER_BLOCK_BYTES = 30, 3 * ENGINE.block_tokens * 2 * 64 * 2
"""SmolLM2-135M in bfloat16."""
PER_ROUND = 3


class Passages:
    """Sends prompts through one cluster, one at a time, and keeps what both nodes noted of each."""

    def __init__(self, cluster: RunningCluster, bytes_per_s: float) -> None:
        self._cluster = cluster
        self._prompts = Prompts()
        self._bytes_per_s = bytes_per_s
        self.digest_shares: list[float] = []

    async def send(self, num_tokens: int) -> Handover:
        """Return one prompt's handover. Raises OSError when it is not answered."""
        for node in ("prefill-0", "decode-0"):
            self._cluster.notes(node)
        answer = await self._cluster.client.ask(self._prompts.draw(num_tokens), 2)
        if answer.error:
            raise OSError(answer.error)
        prefill, decode = self._cluster.notes("prefill-0"), self._cluster.notes("decode-0")
        self.digest_shares.append(_taken_up_s(prefill) / answer.ttft_s)
        return handover_of(num_tokens, prefill, decode)

    def beyond_ms(self, handover: Handover, num_tokens: int) -> float:
        return 1e3 * handover.beyond_s(_last_group_bytes(num_tokens) / self._bytes_per_s)


async def measure(effort: Effort) -> Outcomes:
    bytes_per_s = 1e9 * (await transport_peak())["NIXL write GB/s"]
    return {**await _with_smollm2(effort, bytes_per_s), FAKE: await _with_fake(effort, bytes_per_s)}


async def _with_smollm2(effort: Effort, bytes_per_s: float) -> Mapping[str, Measured]:
    shares: dict[int, list[float]] = {length: [] for length in HIDDEN}
    beyond: list[float] = []
    async with running_cluster("model=smollm2") as cluster:
        passages = Passages(cluster, bytes_per_s)
        await passages.send(256)
        for _ in range(effort.rounds):
            for length in HIDDEN:
                handover = await passages.send(length)
                shares[length].append(handover.hidden_share() / _possible(length))
                if length == 2048:
                    beyond.append(passages.beyond_ms(handover, length))
    return {
        SMOLLM2: Measured(tuple(beyond)),
        DIGESTS: Measured(tuple(100 * share for share in passages.digest_shares), note="P's part, with the push itself"),
        **{HIDDEN[length]: Measured(tuple(found)) for length, found in shares.items()},
    }


async def _with_fake(effort: Effort, bytes_per_s: float) -> Measured:
    async with running_cluster(f"model={SMOLLM2_SHAPE}") as cluster:
        passages = Passages(cluster, bytes_per_s)
        await passages.send(2048)
        found = [passages.beyond_ms(await passages.send(2048), 2048) for _ in range(PER_ROUND * effort.rounds)]
    return Measured(tuple(found))


def _taken_up_s(prefill: list[Note]) -> float:
    return sum(group.length_s for note in prefill if isinstance(note, Step) for group in note.groups)


def _last_chunk_tokens(num_tokens: int) -> int:
    return num_tokens % ENGINE.token_budget or min(num_tokens, ENGINE.token_budget)


def _last_group_bytes(num_tokens: int) -> int:
    num_layers = NUM_LAYERS % ENGINE.layer_group or ENGINE.layer_group
    return num_layers * -(-_last_chunk_tokens(num_tokens) // ENGINE.block_tokens) * LAYER_BLOCK_BYTES


def _possible(num_tokens: int) -> float:
    return possible_share(num_tokens, _last_chunk_tokens(num_tokens), NUM_LAYERS, ENGINE.block_tokens)


HANDOVER = Measurement((SMOLLM2, FAKE, *HIDDEN.values(), DIGESTS), measure)
