"""Builds the runner of a model on a device: weights, workspace and graphs are measured, and the KV cache gets what is left."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from twostep.core.errors import ConfigError
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import BlockId, RequestId
from twostep.core.kv_layout import KVLayout
from twostep.engine.batch import Chunk
from twostep.engine.config import EngineConfig
from twostep.engine.gpu.decode_graphs import DecodeGraphs, graph_sizes
from twostep.engine.gpu.decoder import covered
from twostep.engine.gpu.device import Device
from twostep.engine.gpu.forward import GpuForward
from twostep.engine.gpu.runner import GpuRunner
from twostep.engine.gpu.step_inputs import mixed_numbers
from twostep.engine.identity import fingerprint_of, geometry_of
from twostep.engine.kernels.draw_rows import GREEDY
from twostep.engine.memory_budget import Needs, plan_memory
from twostep.engine.model_folder import open_model_folder
from twostep.engine.models.decoder import Decoder
from twostep.engine.progress import Tell, WeightsProgress, tell_nobody
from twostep.engine.torch_kv_cache import TorchKVCache
from twostep.engine.weights import DTYPES, empty_model, load_weights, weight_bytes

GRAPH_BYTES = 16 << 20
"""What the driver keeps for one captured step of some hundred kernels, generously; what they really take is measured."""
KERNELS_VERSION = 1
"""Raised with every change that may change a bit of what the kernels compute."""
UNCOVERED = "the kernels for GPUs do not cover this model"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a model is to other nodes, once it is known how many blocks it has."""

    fingerprint: Fingerprint
    geometry: Geometry


def build_gpu_runner(
    folder: Path, config: EngineConfig, device: Device, *, landing_bytes: int = 0, tell: Tell = tell_nobody
) -> GpuRunner:
    """Return a runner for the model in a Hugging Face folder. Raises ConfigError when it cannot be served as told.

    `landing_bytes` of the device's memory are for somebody else.
    """
    opened = open_model_folder(folder)
    model, dtype = empty_model(opened), DTYPES[config.dtype]
    decoder = covered(model)
    if decoder is None:
        raise ConfigError(UNCOVERED)
    available, weights = device.free_bytes(), weight_bytes(model, dtype)
    # Gigabytes are not read in vain.
    plan_memory(config.kv_bytes, layout_of(decoder, config).block_bytes, Needs(weights, 0, landing_bytes), available)
    with _fitting("the weights"):
        load_weights(model, opened, dtype, device.place, WeightsProgress(weights, tell).advance)

    def identify(num_blocks: int) -> Identity:
        tell("hashing the weights")
        numerics = f"triton v{KERNELS_VERSION} torch {torch.__version__.partition('+')[0]} {device.name}"
        return Identity(
            fingerprint_of(opened, decoder.facts, layout_of(decoder, config), numerics),
            geometry_of(config, decoder.facts, num_blocks),
        )

    return fit_runner(decoder, config, device, available, identify, landing_bytes=landing_bytes, tell=tell)


def why_uncovered(folder: Path) -> str:
    """Return why the kernels cannot compute the folder's model; empty when they can. Raises ConfigError for no folder."""
    return "" if covered(empty_model(open_model_folder(folder))) else UNCOVERED


def fit_runner(
    model: Decoder,
    config: EngineConfig,
    device: Device,
    available: int,
    identify: Callable[[int], Identity],
    *,
    landing_bytes: int = 0,
    tell: Tell = tell_nobody,
) -> GpuRunner:
    """Return a runner for a loaded model; `available` bytes of the device were free before that was loaded.

    Raises ConfigError when there is not enough memory.
    """
    layout = layout_of(model, config)
    sizes = graph_sizes(config.max_batch if config.max_graph_batch is None else min(config.max_graph_batch, config.max_batch))
    tell("measuring what a step takes")
    with torch.inference_mode(), _fitting("a step"):
        needs = _measured_needs(model, config, layout, device, landing_bytes, sizes)
    ledger = plan_memory(config.kv_bytes, layout.block_bytes, needs, available)
    num_blocks = ledger.kv // layout.block_bytes
    identity = identify(num_blocks)
    with _fitting("the KV cache"):
        kv = TorchKVCache(layout, num_blocks, device.place)
        kv.try_kernels()
    with torch.inference_mode(), device.working(), _fitting("captured decode steps"):
        # What the cache and the weights were filled by is in another order than the device's own.
        device.finish()
        forward = _forward(model, kv.words, config, layout, device, identity.geometry.max_model_tokens)
        graphs = DecodeGraphs(forward, device, layout.block_tokens, sizes)
        graphs.capture(tell)
    memory = replace(ledger, needs=replace(needs, graphs=graphs.cost.num_bytes))
    runner = GpuRunner(forward, graphs, kv, device, memory, fingerprint=identity.fingerprint, geometry=identity.geometry)
    log.info("memory: %s; %d KV blocks of %d tokens", ledger, num_blocks, layout.block_tokens)
    log.info("captured %d steps in %.1f s, %d MiB", len(sizes), graphs.cost.seconds, graphs.cost.num_bytes >> 20)
    return runner


def layout_of(model: Decoder, config: EngineConfig) -> KVLayout:
    """Return how the model's KV lies in memory."""
    facts = model.facts
    return KVLayout(facts.num_layers, facts.num_kv_heads, facts.head_dim, config.block_tokens, config.dtype)


def _forward(
    model: Decoder, words: Tensor, config: EngineConfig, layout: KVLayout, device: Device, max_tokens: int
) -> GpuForward:
    pools = words.view(DTYPES[layout.dtype]).view(*words.shape[:-1], 2, layout.head_dim)
    return GpuForward(
        model, pools, layout, device, max_batch=config.max_batch, max_tokens=max_tokens, layer_group=config.layer_group
    )


@contextmanager
def _fitting(what: str) -> Iterator[None]:
    """Raises ConfigError when the device finds no memory for `what` inside."""
    try:
        yield
    except torch.OutOfMemoryError as cause:
        raise ConfigError(
            f"the device has too little memory for {what}: lower engine.kv_bytes, engine.token_budget, engine.max_batch or "
            "engine.max_graph_batch, or take a smaller model"
        ) from cause


def _measured_needs(
    model: Decoder, config: EngineConfig, layout: KVLayout, device: Device, landing_bytes: int, captured: Sequence[int]
) -> Needs:
    """Run the steps of `steps_to_try` over a cache of one block, which takes whatever is written."""
    weights = sum(parameter.nbytes for parameter in model.parameters())
    max_tokens = config.max_model_tokens or model.facts.max_tokens
    words = torch.zeros(layout.pool_shape(1), dtype=torch.int32, device=device.place)

    def build_and_run() -> None:
        with device.working():
            forward = _forward(model, words, config, layout, device, max_tokens)
            for lengths in steps_to_try(config, max_tokens, captured):
                _run_step(forward, lengths, layout, device)

    workspace = device.peak_bytes(build_and_run)
    return Needs(weights=weights, workspace=workspace, landing=landing_bytes, graphs=len(captured) * GRAPH_BYTES)


def steps_to_try(config: EngineConfig, max_tokens: int, captured: Sequence[int]) -> list[list[int]]:
    """Return steps, as the lengths of their chunks, after which no kernel is left to be compiled while serving.

    The largest step takes the most memory; then come one of a prompt alone, and the decodes that are not `captured`: how
    their contexts are split goes by the size of the batch.
    """
    num_decodes = min(config.max_batch, config.token_budget) - 1
    largest = [*[1] * num_decodes, min(config.token_budget - num_decodes, max_tokens)]
    decodes = [[1] * size for size in graph_sizes(config.max_batch) if size not in captured]
    return [largest, [min(config.token_budget, max_tokens)], *decodes]


def _run_step(forward: GpuForward, lengths: Sequence[int], layout: KVLayout, device: Device) -> None:
    blocks = (BlockId(0),) * layout.num_blocks(max(lengths))
    chunks = [Chunk(RequestId(f"r{i}"), (0,) * length, 0, blocks, GREEDY) for i, length in enumerate(lengths)]
    placed = forward.rows.place(chunks)
    forward.rows.write(placed.changes)
    numbers = mixed_numbers(chunks, placed.rows, layout.block_tokens, forward.rows.spare)
    drawn = torch.empty(len(chunks), dtype=torch.int64, device=device.place)
    forward.run(numbers.inputs(device.send(numbers.memory)), drawn)
