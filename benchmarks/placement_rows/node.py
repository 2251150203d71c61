"""One simulated node of a replay: the real engine with its scheduler and block pool, over a runner that only takes time."""

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, cast

from twostep.benchmarks.placement_rows.constants import Constants
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import Attempt, Incarnation, NodeId, NodeRef
from twostep.core.kv_layout import KVLayout
from twostep.core.pace import PrefillCurve, StepPace
from twostep.core.request import Request
from twostep.engine.batch import Batch, Chunk
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Busy, Engine, StepResult
from twostep.engine.memory_budget import MemoryLedger, Needs
from twostep.engine.runner import Collect, OnLayers, Ran, Runner
from twostep.engine.sequence import Prepared
from twostep.node.pace_meter import PaceMeter
from twostep.router.placement.node_load import NodeLoad, Work, view_of
from twostep.router.placement.node_view import NodeDescription, NodeStatus, NodeView, PeerState, Typical

FIRST = Attempt(1)
OUTPUT_TOKENS = 1 << 30
"""Token ids from here on are drawn: no prompt of the trace holds them."""
LONGEST = 1 << 20


def fingerprint(constants: Constants) -> Fingerprint:
    """Return one whose KV has the wanted size: one head of each of 80 layers."""
    return Fingerprint(
        model="replay",
        weights="w",
        tokenizer="t",
        layout="l",
        dtype="bfloat16",
        num_layers=80,
        num_kv_heads=1,
        head_dim=constants.token_bytes // (80 * 4),
        vocab_size=1 << 32,
        rope="none",
        sampler="s",
    )


@dataclass(slots=True)
class _Memory:
    layout: KVLayout
    num_blocks: int


class TimedRunner:
    """Takes the time that the constants say; `now` is then the end of the step."""

    kernels = "replay"
    depth = 1
    report = None

    def __init__(self, constants: Constants) -> None:
        self.now = 0.0
        self.kv: Any = _Memory(KVLayout(80, 1, 1, constants.block_tokens, "bfloat16"), constants.num_blocks)
        self.memory = MemoryLedger(Needs(0, 0), self.kv.num_blocks * self.kv.layout.block_bytes, 1 << 62)
        self.fingerprint = fingerprint(constants)
        self.geometry = Geometry(constants.block_tokens, LONGEST, layer_group=2, first_head=0, end_head=1)
        self._constants = constants
        self._num_drawn = 0

    def launch(self, batch: Batch, on_layers: OnLayers) -> Collect:
        del on_layers
        self.now += sum(map(self._chunk_s, batch.chunks), self._constants.step_s * self._constants.steps_at_once)
        self._num_drawn += 1
        ran = Ran([OUTPUT_TOKENS + self._num_drawn if chunk.draw else None for chunk in batch.chunks])
        return lambda: ran

    def _chunk_s(self, chunk: Chunk) -> float:
        own, num_tokens = self._constants, len(chunk.tokens)
        if num_tokens == 1:
            return (own.sequence_s + own.context_token_s * chunk.end) * own.steps_at_once
        return num_tokens * (own.prompt_token_s + own.attended_pair_s * (chunk.start + chunk.end) / 2)


class ReplayNode:
    """`beat` is what the router's heartbeat does; everything else is what nodes and their connections do."""

    def __init__(self, role: str, number: int, constants: Constants, peers: list[NodeRef]) -> None:
        self.ref = NodeRef(NodeId(f"{role[0]}{number}"), Incarnation(1))
        self.runner = TimedRunner(constants)
        at_once, usual = constants.steps_at_once, EngineConfig()
        config = EngineConfig(
            block_tokens=constants.block_tokens,
            max_batch=constants.max_batch,
            token_budget=constants.token_budget * at_once,
            min_prefill_tokens=usual.min_prefill_tokens * at_once,
            scheduling=replace(usual.scheduling, tpot_target_s=usual.scheduling.tpot_target_s * at_once),
        )
        self.engine = Engine(cast(Runner, self.runner), config, clock=lambda: self.runner.now)
        self.load = NodeLoad(computes_for_others=role == "prefill")
        self.pace = PaceMeter()
        self.is_stepping = False
        self._steps_at_once = at_once
        self.waiting: deque[tuple[Prepared, Any]] = deque()
        self.description = NodeDescription(
            self.ref,
            role,
            True,
            "",
            "replay",
            self.runner.fingerprint,
            self.runner.geometry,
            "replay",
            "",
            LONGEST,
            "",
            "replay",
        )
        self._peers = {peer: PeerState(True, "proven", "", "replay", constants.path_bytes_per_s) for peer in peers}
        self.status = self._status()

    def beat(self, now: float) -> None:
        """Tell the router how the node is."""
        mark, self.status = self.load.mark(), self._status()
        self.load.hear(self.status, mark, self.status.prefill_curve or Typical().curve, now)

    def view(self, typical: Typical) -> NodeView:
        return view_of(self.description, self.status, self.load, typical)

    def send(self, request: Request, work: Work, now: float) -> None:
        self.load.send(request.id, work, now)

    def wait(self, request: Request, served: Any) -> None:
        self.waiting.append((self.engine.prepare(request, growth_tokens=1), served))

    def try_reserve(self, prepared: Prepared) -> int | None:
        """Return the tokens of the prompt that are cached here, or None when there is no room now."""
        try:
            return self.engine.take(prepared).cached_tokens
        except Busy:
            return None

    def step(self, now: float) -> StepResult | None:
        """Compute one step that begins now; its result counts from `runner.now` on."""
        self.runner.now = max(now, self.runner.now)
        result = self.engine.step()
        if result:
            self.pace.take(result)
        return result

    def _status(self) -> NodeStatus:
        load, blocks, rates = self.engine.load(), self.engine.occupancy(), self.pace.prefill.points
        return NodeStatus(
            self.ref,
            is_ready=True,
            not_ready_reason="",
            num_running=load.num_running,
            num_waiting=load.num_waiting + len(self.waiting),
            queued_tokens=load.queued_tokens + (waiting := sum(len(one.request.tokens) for one, _ in self.waiting)),
            free_blocks=blocks.free,
            cached_blocks=blocks.cached,
            total_blocks=blocks.total,
            peers=self._peers,
            waiting_tokens=waiting,
            block_hold_s=self.engine.supplies().blocks.mean_hold_s or 0.0,
            prefill_curve=PrefillCurve(rates) if rates else None,
            step_pace=self._step_pace(),
        )

    def _step_pace(self) -> StepPace | None:
        pace, num_steps = self.pace.step.pace, self._steps_at_once
        return StepPace(pace.base_s / num_steps, pace.sequence_s / num_steps) if pace else None
