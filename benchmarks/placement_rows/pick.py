"""What one pick costs among ten thousand nodes: match the prompt, weigh the few, note what was decided."""

import gc
import random
import time
from collections.abc import Iterator
from dataclasses import replace

from twostep.benchmarks.harness.command import Measurement, Outcomes
from twostep.benchmarks.harness.rounds import Effort, percentile
from twostep.benchmarks.harness.rows import Measured
from twostep.core.block_hash import HASH_BLOCK_TOKENS
from twostep.core.block_news import BlockNews
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import BlockHash, Incarnation, NodeId, NodeRef, RequestId
from twostep.core.pace import PrefillCurve, RatePoint, StepPace
from twostep.core.request import Request, SamplingParams, StopRules
from twostep.router.config import RouterConfig
from twostep.router.metrics import Metrics
from twostep.router.placement.choose import AVOID_NOTHING
from twostep.router.placement.fleet import Fleet
from twostep.router.placement.node_load import NodeLoad, view_of
from twostep.router.placement.node_view import NodeDescription, NodeStatus, PeerState, Typical
from twostep.router.placement.placer import Errand, Placer
from twostep.router.placement.prefix_index import PrefixIndex
from twostep.router.placement.prompt_hashes import Naming

PICK = "one pick among 10,000 nodes, p99"
NUM_NODES = 10_000
NUM_PEERS = 64
NUM_FAMILIES = 200
NUM_HOLDERS = 8
FAMILY_BLOCKS = 200
PROMPT_TOKENS = 8192
"""Prompts of 8k tokens, of which a family's first 6,400 lie on eight prefill nodes: a long prefix, walked block by block."""
NUM_PICKS = 4000
GEOMETRY = Geometry(HASH_BLOCK_TOKENS, 1 << 17, 2, 0, 8)
FINGERPRINT = Fingerprint("m", "w", "t", "l", "bfloat16", 32, 8, 128, 1 << 17, "r", "s")
TYPICAL = Typical()
NAMING = Naming.of(FINGERPRINT, GEOMETRY)


class LargeCluster:
    """Half prefill, half decode nodes, each prefill node with `NUM_PEERS` peers; every node busy by chance."""

    def __init__(self) -> None:
        self.chance = random.Random(1)
        self.fleet, self.index, self.now = Fleet(), PrefixIndex(1 << 30), 0.0
        self.loads: dict[NodeRef, NodeLoad] = {}
        self._known: dict[NodeRef, tuple[NodeDescription, NodeStatus]] = {}
        decode = [NodeRef(NodeId(f"d{number}"), Incarnation(number + 1)) for number in range(NUM_NODES // 2)]
        prefill = [NodeRef(NodeId(f"p{number}"), Incarnation(number + 1)) for number in range(NUM_NODES // 2)]
        for node in decode:
            self._add(node, "decode", [])
        for node in prefill:
            self._add(node, "prefill", self.chance.sample(decode, NUM_PEERS))
        for node in prefill:
            # Their peers have all come by now; the next heartbeat of each says so again.
            description, status = self._known[node]
            self._known[node] = description, replace(status)
            self._put(node)
        self.families = [self._family(prefill) for _ in range(NUM_FAMILIES)]
        config = RouterConfig(allow_decode_alone=True, decode=("d:1",))
        self.placer = Placer(self.fleet, self.index, Typical, config, Metrics(), lambda: self.now)

    def errand(self, number: int) -> Errand:
        """Return a request whose prompt begins as its family's; its blocks are named already."""
        family = self.chance.choice(self.families)
        rest = self.chance.choices(range(1 << 17), k=PROMPT_TOKENS - len(family))
        request = Request(RequestId(str(number)), (*family, *rest), SamplingParams(seed=0), StopRules(max_tokens=500))
        errand = Errand.of(request)
        errand.prompt.blocks(NAMING)
        return errand

    def pick_s(self, errand: Errand) -> float:
        """Place one request and count it, as the router does; returns the seconds."""
        self.now += 0.001
        started = time.perf_counter()
        placement = self.placer.place(errand, num_accepted=0, keep=None, avoid=AVOID_NOTHING)
        works = [(placement.decode, placement.decode_work)]
        works += [(placement.prefill, placement.prefill_work)] if placement.prefill else []
        for view, work in works:
            self.loads[view.ref].expect(errand.request.id, work, self.now)
            self._put(view.ref)
        return time.perf_counter() - started

    def _family(self, prefill: list[NodeRef]) -> list[int]:
        tokens = self.chance.choices(range(1 << 17), k=FAMILY_BLOCKS * HASH_BLOCK_TOKENS)
        errand = Errand.of(Request(RequestId(""), (*tokens, 0), SamplingParams(seed=0), StopRules(max_tokens=1)))
        blocks: tuple[BlockHash, ...] = tuple(errand.prompt.blocks(NAMING))
        for node in self.chance.sample(prefill, NUM_HOLDERS):
            first = self.index.next_event(node)
            self.index.hear(node, BlockNews(first, first + len(blocks), blocks))
        return tokens

    def _add(self, ref: NodeRef, role: str, peers: list[NodeRef]) -> None:
        curve = PrefillCurve((RatePoint(0, 1e-4), RatePoint(4096, self.chance.uniform(1.1e-4, 1.5e-4))))
        description = NodeDescription(
            ref, role, True, "", "m", FINGERPRINT, GEOMETRY, "nixl", "", 1 << 17, "", kernels="replay"
        )
        status = NodeStatus(
            ref,
            is_ready=True,
            not_ready_reason="",
            num_running=self.chance.randrange(1, 40),
            queued_tokens=self.chance.randrange(60_000),
            free_blocks=20_000,
            total_blocks=30_000,
            peers={peer: PeerState(True, "proven", "", "nixl", self.chance.uniform(1e9, 4e10)) for peer in peers},
            block_hold_s=10.0,
            prefill_curve=curve,
            step_pace=StepPace(0.02, self.chance.uniform(1e-4, 3e-4)),
        )
        self.loads[ref] = load = NodeLoad(computes_for_others=role == "prefill")
        load.hear(status, load.mark(), curve, self.now)
        self._known[ref] = description, status
        self.index.meet(ref, NAMING)
        self._put(ref)

    def _put(self, ref: NodeRef) -> None:
        description, status = self._known[ref]
        self.fleet.put(view_of(description, status, self.loads[ref], TYPICAL))


def picks_s(cluster: LargeCluster, num_picks: int) -> Iterator[float]:
    """Yield what each pick takes, in seconds."""
    for number in range(num_picks):
        yield cluster.pick_s(cluster.errand(number))


async def measure(effort: Effort) -> Outcomes:
    cluster = LargeCluster()
    # Ten thousand nodes of one process are not what a pick should have collected.
    gc.collect()
    gc.freeze()
    rounds = [list(picks_s(cluster, NUM_PICKS // effort.pick(1, 4))) for _ in range(effort.rounds)]
    median_us = 1e6 * percentile([one for taken in rounds for one in taken], 50)
    note = f"median {median_us:.0f} us; naming the blocks of a prompt is extra"
    return {PICK: Measured(tuple(1e6 * percentile(taken, 99) for taken in rounds), note=note)}


PICK_ROW = Measurement((PICK,), measure)
