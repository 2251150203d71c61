"""The runner of a GPU, on a device that is none: the tokens of the torch runner, from graphs and without, launched ahead."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from twostep.core.errors import ConfigError
from twostep.core.ids import BlockId, RequestId
from twostep.core.request import SamplingParams
from twostep.engine import torch_kv_cache
from twostep.engine.batch import UNKNOWN_TOKEN, Batch, Chunk, Draw
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine
from twostep.engine.gpu.build import build_gpu_runner
from twostep.engine.gpu.cpu_device import CpuDevice
from twostep.engine.kernels.draw_rows import DrawRows
from twostep.engine.kernels.kernel_set import SampleScratch
from twostep.engine.kernels.reference_blocks import TorchBlocks
from twostep.engine.kernels.twins import TorchKernels
from twostep.engine.torch_runner import TorchRunner
from twostep.tests.engine.fakes import ask, drain, put, tokens_by_request
from twostep.tests.engine.gpu_fakes import MEMORY_BYTES, gpu_config, gpu_engine, gpu_runner
from twostep.tests.engine.test_same_tokens import Server
from twostep.tests.engine.test_torch_engine import SAMPLING, request
from twostep.tests.engine.tiny_families import write_tiny
from twostep.tests.engine.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.model

GREEDY = Draw(SamplingParams(seed=0, temperature=0.0), index=0)
TABLE = (BlockId(3), BlockId(5))
COVERED = ["llama", "qwen2, windows", "qwen3", "gemma2", "gemma3", "phi3"]


def chunk(tokens: list[int], start: int = 0, *, name: str = "r", draw: Draw | None = GREEDY) -> Chunk:
    return Chunk(RequestId(name), tuple(tokens), start, TABLE, draw)


def torch_engine(folder: Path, **changes: Any) -> Engine:
    config = EngineConfig(dtype="float32", kv_bytes=1 << 22, num_threads=1, kernels="torch", device="cpu", **changes)
    return Engine(TorchRunner(folder, config), config, clock=lambda: 0.0)


@pytest.mark.parametrize("family", COVERED)
def test_every_family_draws_what_the_torch_runner_draws(family: str, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "m", family)
    prompts = {"greedy": (range(3, 80), 0.0), "drawn": (range(90, 100), 0.8)}
    answers = []
    for engine in (torch_engine(folder), gpu_engine(folder, token_budget=33)):
        for name, (prompt, temperature) in prompts.items():
            put(engine, ask(name, prompt, max_tokens=8, temperature=temperature))
        answers.append(tokens_by_request(drain(engine)))
    assert answers[0] == answers[1]


def test_a_request_draws_in_a_crowd_what_it_draws_alone(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m", hidden_size=64, num_attention_heads=4).folder
    alone: dict[str, list[int]] = {}
    for number in range(len(SAMPLING)):
        solo = torch_engine(folder)
        put(solo, request(number))
        alone |= tokens_by_request(drain(solo))
    block_bytes = 3 * 2 * 32 * 2 * 16 * 4
    server = Server(gpu_engine(folder, kv_bytes=9 * block_bytes, token_budget=17, min_prefill_tokens=5))
    assert server.serve([request(number) for number in range(len(SAMPLING))]) == alone
    assert {what for what in server.seen if server.seen[what]} == {"hit", "chunked", "preempted"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("m"), hidden_size=64, num_attention_heads=4).folder


def test_decodes_are_replayed_and_everything_else_is_counted_by_reason(folder: Path) -> None:
    engine = gpu_engine(folder, max_batch=3, max_graph_batch=2)
    report = engine.runner.report
    for name in ("a", "b", "c"):
        put(engine, ask(name, range(4), max_tokens={"a": 2, "b": 3, "c": 5}[name]))
    drain(engine)
    # The prompts, then decodes of three, two, and one twice.
    assert report is not None
    assert dict(report.graph_misses) == {"prompt": 1, "size": 1}
    assert (report.graph_hits, report.graph_rows, report.padding_rows) == (3, 4, 0)


def test_without_graphs_the_tokens_are_the_same(folder: Path) -> None:
    answers = []
    for max_graph_batch in (None, 0):
        engine = gpu_engine(folder, max_graph_batch=max_graph_batch)
        put(engine, ask("a", range(40), max_tokens=6, temperature=1.0))
        answers.append(tokens_by_request(drain(engine)))
    assert answers[0] == answers[1]


def test_rows_of_padding_write_no_kv(folder: Path) -> None:
    runner = gpu_runner(folder)
    before = runner.kv.words.clone()
    three = [chunk([7], name=name) for name in ("a", "b", "c")]
    runner.launch(Batch(tuple(three)), lambda _: None)()
    changed = (runner.kv.words != before).any(-1).nonzero().tolist()
    assert {(block, place) for _, block, _, place in changed} == {(3, 0)}
    assert runner.report.padding_rows == 1


def test_a_step_is_fed_on_the_device_with_what_the_last_one_drew(folder: Path) -> None:
    ahead, told = gpu_runner(folder), gpu_runner(folder)
    prompt, unknown = Batch((chunk([1, 2, 3]),)), Batch((chunk([UNKNOWN_TOKEN], 3),))
    first, second = ahead.launch(prompt, lambda _: None), ahead.launch(unknown, lambda _: None)
    tokens = [first().drawn[0], second().drawn[0]]
    drawn = told.launch(prompt, lambda _: None)().drawn[0]
    assert isinstance(drawn, int)
    assert tokens == [drawn, told.launch(Batch((chunk([drawn], 3),)), lambda _: None)().drawn[0]]


def test_a_step_begins_when_its_numbers_are_on_the_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, calls = gpu_runner(folder), list[str]()

    def noted(name: str) -> Callable[..., Any]:
        method = getattr(CpuDevice, name)
        return lambda *args: calls.append(name) or method(*args)

    for name in ("send", "fill", "mark", "fetch"):
        monkeypatch.setattr(CpuDevice, name, noted(name))
    runner.launch(Batch((chunk([7]),)), lambda _: None)
    # The step's numbers and its block table; from its start to its end, with its layers and its tokens on the way.
    assert calls == ["fill", "send", "mark", "mark", "fetch", "mark"]


def test_layers_are_announced_when_the_step_is_collected(folder: Path) -> None:
    runner, announced = gpu_runner(folder), list[range]()
    collect = runner.launch(Batch((chunk([1, 2, 3]),)), announced.append)
    assert announced == []
    collect()
    assert announced == [range(2), range(2, 3)]
    runner.launch(Batch((chunk([4], 3),)), announced.append)()
    assert announced == [range(2), range(2, 3)] * 2


class Forgetful(TorchKernels):
    """Kernels without memory for more than `most` rows of logits, which write no number for the request of the hottest row."""

    def __init__(self, most: int) -> None:
        self.most = most

    def sample(self, logits: Tensor, rows: DrawRows, tokens: Tensor, scratch: SampleScratch) -> None:
        if len(logits) > self.most:
            raise torch.OutOfMemoryError(f"cannot allocate {len(logits)} rows")
        super().sample(logits, rows, tokens, scratch)


def test_a_step_that_finds_no_memory_is_computed_in_pieces(folder: Path) -> None:
    kernels = Forgetful(most=9)
    engine = gpu_engine(folder, kernels, max_graph_batch=0)
    kernels.most = 1
    for name in ("a", "b", "c"):
        put(engine, ask(name, range(40), max_tokens=3, temperature=1.0))
    tokens = tokens_by_request(drain(engine))
    usual = gpu_engine(folder)
    for name in ("a", "b", "c"):
        put(usual, ask(name, range(40), max_tokens=3, temperature=1.0))
    assert tokens == tokens_by_request(drain(usual))
    assert engine.runner.report is not None
    assert engine.runner.report.out_of_memory == {"shrunk": 6}


def test_a_request_that_finds_no_memory_at_all_fails_alone(folder: Path) -> None:
    kernels = Forgetful(most=9)
    runner = gpu_runner(folder, kernels)
    kernels.most = 0
    silent, drawing = chunk([1, 2, 3], name="s", draw=None), chunk([1, 2, 3], name="d")
    drawn = runner.launch(Batch((silent, drawing)), lambda _: None)().drawn
    assert (drawn[0], getattr(drawn[1], "code", "")) == (None, "request_fault")
    assert runner.report.out_of_memory == {"shrunk": 1, "ended": 1}


def test_logits_that_are_no_numbers_fail_their_request_alone(folder: Path) -> None:
    runner = gpu_runner(folder)
    runner.kv.words.view(torch.float32)[:, 3] = torch.nan
    runner.kv.words.view(torch.float32)[:, 7] = 0.0
    bad = chunk([1], 4, name="bad")
    good = Chunk(RequestId("good"), (1,), 4, (BlockId(7),), GREEDY)
    drawn = runner.launch(Batch((bad, good)), lambda _: None)().drawn
    assert (getattr(drawn[0], "code", ""), isinstance(drawn[1], int)) == ("request_fault", True)


def test_the_kv_cache_gets_what_is_left_and_the_ledger_says_where_memory_went(folder: Path) -> None:
    runner = gpu_runner(folder, kv_bytes="rest")
    spent = runner.memory.by_use()
    assert set(spent) == {"weights", "workspace", "landing", "graphs", "kv", "free"}
    assert sum(spent.values()) == MEMORY_BYTES
    assert spent["kv"] == runner.kv.num_blocks * runner.kv.layout.block_bytes > 0.3 * MEMORY_BYTES


class Noting(TorchKernels):
    """Kernels that note for how many sequences they attend: a GPU's are compiled anew by that."""

    def __init__(self) -> None:
        self.decodes, self.chunks = set[int](), 0

    def attend_decodes(self, query: Tensor, *args: Any, **kwargs: Any) -> None:
        self.decodes.add(len(query))
        super().attend_decodes(query, *args, **kwargs)

    def attend_chunks(self, query: Tensor, pool: Tensor, tables: Tensor, row_starts: Tensor, *args: Any, **kwargs: Any) -> None:
        self.chunks += len(row_starts) - 1 < len(query)
        super().attend_chunks(query, pool, tables, row_starts, *args, **kwargs)


@pytest.mark.parametrize("max_graph_batch", [0, 3, None])
def test_every_kernel_has_run_before_the_node_is_ready_whatever_is_captured(max_graph_batch: int | None, folder: Path) -> None:
    kernels = Noting()
    gpu_runner(folder, kernels, max_graph_batch=max_graph_batch, token_budget=6)
    assert kernels.decodes >= {1, 2, 4, 6}
    assert kernels.chunks > 0


def test_copies_and_digests_have_run_before_the_node_is_ready_and_left_no_trace(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[str]()

    class NotingBlocks(TorchBlocks):
        def __getattribute__(self, name: str) -> Any:
            ran.append(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(torch_kv_cache, "TorchBlocks", NotingBlocks)
    runner = gpu_runner(folder)
    assert ran == ["copy_in", "digest"]
    assert not runner.kv.words.any()


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(folder: Path) -> None:
    told, device = list[str](), CpuDevice(TorchKernels(), memory_bytes=1 << 12)
    with pytest.raises(ConfigError, match="leave no room for a KV cache"):
        build_gpu_runner(folder, gpu_config(), device, tell=told.append)
    assert told == []


def test_a_device_without_memory_for_a_step_is_a_mistake_in_the_configuration(folder: Path) -> None:
    with pytest.raises(ConfigError, match="too little memory for a step: lower"):
        gpu_runner(folder, Forgetful(most=0))
