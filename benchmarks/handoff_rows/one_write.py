"""Whether pushing a short prompt layer group by layer group costs anything against one write at the end."""

from twostep.benchmarks.cluster.client import Client
from twostep.benchmarks.cluster.running import running_cluster
from twostep.benchmarks.handoff_rows.prompts import Prompts
from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, Side, alternate

LAYER_WISE = "TTFT of a 256 prompt, layer-wise push"
NUM_TOKENS = 256
PER_ROUND = 5


async def measure(effort: Effort) -> Outcomes:
    """The time until D's first own token is what a push can change: P's first token does not wait for it."""
    async with (
        running_cluster("model=smollm2", "prefill.one_write_tokens=0") as layer_wise,
        running_cluster("model=smollm2", "prefill.one_write_tokens=4096") as one_write,
    ):
        ours, peer = _ttft_ms(layer_wise.client, Prompts(1)), _ttft_ms(one_write.client, Prompts(2))
        return {LAYER_WISE: await alternate(ours, peer, effort.rounds)}


def _ttft_ms(client: Client, prompts: Prompts) -> Side:
    async def side() -> float:
        found = []
        for _ in range(PER_ROUND):
            answer = await client.ask(prompts.draw(NUM_TOKENS), 2)
            if answer.error:
                raise OSError(answer.error)
            found.append(1e3 * answer.ttft_s)
        return sorted(found)[PER_ROUND // 2]

    return side


ONE_WRITE = Measurement((LAYER_WISE,), measure)
