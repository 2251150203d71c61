"""Runs a model over a paged KV cache, on CPU or, by the same code, on a GPU."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from twostep.core.cache_folder import cache_folder
from twostep.core.errors import RequestFault
from twostep.core.kv_layout import KVLayout
from twostep.engine.batch import Batch, Draw
from twostep.engine.config import EngineConfig
from twostep.engine.cpu_forward import CpuForward
from twostep.engine.forward import Forward
from twostep.engine.identity import fingerprint_of, geometry_of
from twostep.engine.kernels.cpu.choice import Kernels, NoKernels, choose_kernels
from twostep.engine.kv_cache import HostKVCache, KVCache
from twostep.engine.memory_budget import Needs, available_host_bytes, plan_memory
from twostep.engine.model_folder import open_model_folder
from twostep.engine.models.causal_lm import CausalLM
from twostep.engine.progress import Tell, WeightsProgress, tell_nobody
from twostep.engine.runner import NOT_NUMBERS, Collect, OnLayers, Ran
from twostep.engine.sampler import sample
from twostep.engine.torch_forward import TorchForward
from twostep.engine.torch_kv_cache import TorchKVCache
from twostep.engine.weights import DTYPES, empty_model, load_weights, own, weight_bytes, workspace_bytes

log = logging.getLogger(__name__)


class TorchRunner:
    """Implements `Runner` for the model in a Hugging Face folder. Raises ConfigError when it cannot be served as told.

    `landing_bytes` of the device's memory are for somebody else; `tell` hears what is being loaded; `why_torch` is why torch
    computes on a GPU where kernels were asked for.
    """

    depth = 1
    report = None

    def __init__(
        self,
        model_folder: Path,
        config: EngineConfig,
        device: str = "cpu",
        *,
        landing_bytes: int = 0,
        tell: Tell = tell_nobody,
        why_torch: str = "",
    ) -> None:
        place, dtype = torch.device(device), DTYPES[config.dtype]
        folder = open_model_folder(model_folder)
        model = empty_model(folder)
        facts = model.facts
        kernels = choose_kernels(model, config, cache_folder() / "kernels") if place.type == "cpu" else NoKernels(why_torch)
        layout = KVLayout(facts.num_layers, facts.num_kv_heads, facts.head_dim, config.block_tokens, config.dtype)
        weights = weight_bytes(model, dtype)
        needs = Needs(
            weights=weights + dtype.itemsize * kernels.num_copied,
            workspace=workspace_bytes(model, config.token_budget, config.max_batch),
            landing=landing_bytes,
        )
        available = available_host_bytes() if place.type == "cpu" else torch.cuda.mem_get_info(place)[0]
        self.memory = plan_memory(config.kv_bytes, layout.block_bytes, needs, available)
        num_blocks = self.memory.kv // layout.block_bytes
        log.info("memory: %s; %d KV blocks of %d tokens", self.memory, num_blocks, layout.block_tokens)
        self.geometry = geometry_of(config, facts, num_blocks)
        load_weights(model, folder, dtype, place, WeightsProgress(weights, tell).advance)
        self.kv, words = _kv_cache(layout, num_blocks, place)
        tell("preparing the weights")
        self._forward = _forward(kernels, model, self.kv, words, config)
        self.kernels = kernels.description
        log.info("computing with %s", self.kernels)
        tell("hashing the weights")
        self.fingerprint = fingerprint_of(folder, facts, layout, self._forward.numerics)

    def launch(self, batch: Batch, on_layers: OnLayers) -> Collect:
        draws = [chunk.draw for chunk in batch.chunks if chunk.draw]
        drawn = iter(draw_tokens(self._forward.logits(batch, on_layers), draws))
        ran = Ran([next(drawn) if chunk.draw else None for chunk in batch.chunks])
        return lambda: ran

    def logits(self, batch: Batch, on_layers: OnLayers) -> Tensor:
        """Write the batch's KV and return the logits of the chunks that draw, float32 [draw, vocab]; see `Runner`."""
        return self._forward.logits(batch, on_layers).clone()


def draw_tokens(logits: Tensor, draws: Sequence[Draw]) -> list[int | RequestFault]:
    """Return a token for each row of `logits` [row, vocab], or a RequestFault for a row that is not all numbers."""
    # One pass: a single NaN or infinity makes its row's sum one too.
    is_sound = logits.sum(dim=-1).isfinite().tolist()
    tokens = sample(logits if all(is_sound) else logits.nan_to_num(), draws).tolist()
    return [token if sound else RequestFault(NOT_NUMBERS) for token, sound in zip(tokens, is_sound, strict=True)]


def _kv_cache(layout: KVLayout, num_blocks: int, device: torch.device) -> tuple[KVCache, Tensor]:
    """Return the cache and its words as a tensor that shares its memory."""
    if device.type == "cpu":
        host = HostKVCache(layout, num_blocks)
        return host, torch.from_numpy(host.words)
    cache = TorchKVCache(layout, num_blocks, device)
    cache.try_kernels()
    return cache, cache.words


def _forward(kernels: Kernels | NoKernels, model: CausalLM, kv: KVCache, words: Tensor, config: EngineConfig) -> Forward:
    num_threads = config.num_threads or usual_threads()
    if isinstance(kernels, NoKernels) or not isinstance(kv, HostKVCache):
        torch.set_num_threads(num_threads)
        own(model.as_module())
        return TorchForward(model, words, kv.layout, DTYPES[config.dtype], layer_group=config.layer_group)
    # torch only draws then: threads of its own would spin where the kernels' are to run.
    torch.set_num_threads(1)
    own(kernels.model.embed_tokens)
    return CpuForward(kernels, kv, layer_group=config.layer_group, num_threads=num_threads)


def usual_threads() -> int:
    """Return how many threads compute unless told: `OMP_NUM_THREADS`, by which nodes share a machine, or one for each core."""
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(told) if told.isdecimal() and int(told) else len(os.sched_getaffinity(0))
