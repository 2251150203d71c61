"""Runs a model with torch over a paged KV cache, on CPU or, by the same code, on a GPU."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from twostep.core.block_hash import HASH_SCHEME, SALT_RULE
from twostep.core.digest import DIGEST_VERSION
from twostep.core.errors import ConfigError, RequestFault
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.kv_layout import KVLayout
from twostep.engine.batch import Batch, Draw
from twostep.engine.config import EngineConfig
from twostep.engine.kv_cache import HostKVCache
from twostep.engine.memory_budget import MIB, MemoryLedger, available_host_bytes
from twostep.engine.model_folder import ModelFolder, open_model_folder
from twostep.engine.models.causal_lm import ModelFacts
from twostep.engine.runner import Drawn, OnLayers
from twostep.engine.sampler import SAMPLER_VERSION, sample
from twostep.engine.step_plan import StepPlan, StepPlanner
from twostep.engine.weights import load_model, num_bytes
from twostep.engine.weights_digest import file_sha256, weights_digest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

log = logging.getLogger(__name__)


class TorchRunner:
    """Implements `Runner` for the model in a Hugging Face folder. Raises ConfigError when it cannot be served as told."""

    def __init__(self, model_folder: Path, config: EngineConfig, device: str = "cpu") -> None:
        if config.num_threads:
            torch.set_num_threads(config.num_threads)
        folder = open_model_folder(model_folder)
        dtype = DTYPES[config.dtype]
        self._device = torch.device(device)
        self._model = load_model(folder, dtype, self._device)
        facts = self._model.facts
        layout = KVLayout(facts.num_layers, facts.num_kv_heads, facts.head_dim, config.block_tokens, config.dtype)
        self._num_layers = facts.num_layers
        self.kv = _host_kv(layout, config, num_bytes(self._model.as_module()))
        words = torch.from_numpy(self.kv.words)
        self._pools = words.view(dtype).view(*words.shape[:-1], 2, facts.head_dim)
        self._planner = StepPlanner(layout, dtype, self._device)
        self.geometry = _geometry(config, facts, self.kv.num_blocks)
        self.fingerprint = _fingerprint(folder, facts, layout)

    @torch.inference_mode()
    def run(self, batch: Batch, on_layers: OnLayers) -> list[Drawn]:
        plan = self._planner.plan(batch)
        hidden, inputs = self._model.begin(plan)
        for first in range(0, self._num_layers, self.geometry.layer_group):
            layers = range(first, min(first + self.geometry.layer_group, self._num_layers))
            for layer in layers:
                hidden = self._model.run_layer(layer, hidden, inputs, self._pools[layer])
            on_layers(layers)
        return self._draw(batch, plan, hidden)

    def _draw(self, batch: Batch, plan: StepPlan, hidden: Tensor) -> list[Drawn]:
        draws = [chunk.draw for chunk in batch.chunks if chunk.draw]
        if not draws:
            return [None] * len(batch.chunks)
        drawn = iter(draw_tokens(self._model.logits(hidden[plan.draw_rows]).float(), draws))
        return [next(drawn) if chunk.draw else None for chunk in batch.chunks]


def draw_tokens(logits: Tensor, draws: Sequence[Draw]) -> list[int | RequestFault]:
    """Return a token for each row of `logits` [row, vocab], or a RequestFault for a row that is not all numbers."""
    is_sound = logits.isfinite().all(dim=-1).tolist()
    tokens = sample(logits.nan_to_num(), draws).tolist() if not all(is_sound) else sample(logits, draws).tolist()
    return [
        token if sound else RequestFault("the model gave logits that are no numbers (NaN or infinite)")
        for token, sound in zip(tokens, is_sound, strict=True)
    ]


def _host_kv(layout: KVLayout, config: EngineConfig, weight_bytes: int) -> HostKVCache:
    num_blocks = config.kv_bytes // layout.block_bytes
    if not num_blocks:
        raise ConfigError(f"engine.kv_bytes = {config.kv_bytes} holds no block: one takes {layout.block_bytes} bytes")
    ledger = MemoryLedger(weight_bytes, num_blocks * layout.block_bytes, available_host_bytes() + weight_bytes)
    ledger.require_fit()
    log.info(
        "memory: weights %d MiB, KV %d MiB (%d blocks of %d tokens), available %d MiB",
        ledger.weights // MIB,
        ledger.kv // MIB,
        num_blocks,
        layout.block_tokens,
        ledger.available // MIB,
    )
    return HostKVCache(layout, num_blocks)


def _geometry(config: EngineConfig, facts: ModelFacts, num_blocks: int) -> Geometry:
    wanted = config.max_model_tokens or facts.max_tokens
    if wanted > facts.max_tokens:
        raise ConfigError(f"engine.max_model_tokens = {wanted}: this model takes {facts.max_tokens} tokens")
    return Geometry(
        block_tokens=config.block_tokens,
        max_model_tokens=min(wanted, num_blocks * config.block_tokens),
        layer_group=min(config.layer_group, facts.num_layers),
        first_head=0,
        end_head=facts.num_kv_heads,
    )


def _fingerprint(folder: ModelFolder, facts: ModelFacts, layout: KVLayout) -> Fingerprint:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twostep" / "weights-digests"
    return Fingerprint(
        model=folder.name,
        weights=weights_digest(folder, cache),
        tokenizer=file_sha256(folder.tokenizer),
        layout=layout.layout_id,
        dtype=layout.dtype,
        num_layers=facts.num_layers,
        num_kv_heads=facts.num_kv_heads,
        head_dim=facts.head_dim,
        vocab_size=facts.vocab_size,
        rope=facts.rope,
        sampler=SAMPLER_VERSION,
        hash_scheme=HASH_SCHEME,
        salt_rule=SALT_RULE,
        digest=DIGEST_VERSION,
    )
