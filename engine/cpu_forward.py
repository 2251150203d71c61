"""Computes a step with the CPU kernels: one foreign call for each group of layers."""

import ctypes
import weakref
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from twostep.core.errors import ConfigError, EngineFault
from twostep.engine.batch import Batch
from twostep.engine.kernels.cpu.choice import Kernels
from twostep.engine.kernels.cpu.library import ChunkSpec, StepSpec, open_library
from twostep.engine.kernels.cpu.specs import Specs
from twostep.engine.kv_cache import HostKVCache
from twostep.engine.models.decoder import Decoder
from twostep.engine.runner import OnLayers

KERNELS_VERSION = 2
"""Raised with every change to the kernels that may change a bit of what they compute."""


class CpuForward:
    """Implements `Forward`. Takes over the weights of the kernels' model, layer by layer, as it packs them."""

    def __init__(self, kernels: Kernels, kv: HostKVCache, *, layer_group: int, num_threads: int) -> None:
        model = kernels.model
        self.numerics = f"{kernels.name} v{KERNELS_VERSION}"
        self._library = open_library(kernels.library)
        if not self._library.may_multiply():
            raise ConfigError(f"the system does not let this process use {kernels.name}: name others in engine.kernels")
        self._kv = kv
        self._embedding = model.embed_tokens.weight
        self._vocab_size, self._num_layers, self._layer_group = model.facts.vocab_size, model.facts.num_layers, layer_group
        self._logits = torch.empty((0, self._vocab_size))
        specs = Specs()
        self._model = self._library.create(ctypes.byref(specs.model(model, kv, num_threads=num_threads)))
        if not self._model:
            raise ConfigError("there is not enough memory for the CPU kernels' workspace")
        weakref.finalize(self, self._library.free, self._model)
        self._pack(model)

    def _pack(self, model: Decoder) -> None:
        head = model.embed_tokens if model.lm_head is None else model.lm_head
        statuses = [self._library.set_head(self._model, head.weight.data_ptr())]
        model.lm_head = None
        ropes = [rope.config for rope in model.ropes]
        while model.layers:
            specs = Specs()
            spec = specs.layer(model.layers.pop(0), ropes)
            statuses.append(self._library.add_layer(self._model, ctypes.byref(spec)))
        if any(statuses):
            raise ConfigError("there is not enough memory to pack the weights for the CPU kernels")

    def logits(self, batch: Batch, on_layers: OnLayers) -> Tensor:
        self._begin(batch)
        for first in range(0, self._num_layers, self._layer_group):
            layers = range(first, min(first + self._layer_group, self._num_layers))
            self._library.run_layers(self._model, layers.start, layers.stop)
            on_layers(layers)
        ends = accumulate(len(chunk.tokens) for chunk in batch.chunks)
        rows = np.array([end - 1 for end, chunk in zip(ends, batch.chunks, strict=True) if chunk.draw], dtype=np.int32)
        # Fresh memory for each step would cost more than the writing: the system zeroes every page of it.
        if len(rows) > len(self._logits):
            self._logits = torch.empty((len(rows), self._vocab_size))
        logits = self._logits[: len(rows)]
        self._library.logits(self._model, rows.ctypes.data, len(rows), logits.data_ptr())
        return logits

    def _begin(self, batch: Batch) -> None:
        tables = [chunk.blocks[: self._kv.layout.num_blocks(chunk.end)] for chunk in batch.chunks]
        firsts = [0, *accumulate(map(len, tables))]
        tokens = np.fromiter(chain.from_iterable(chunk.tokens for chunk in batch.chunks), np.int32)
        entries = np.fromiter(chain.from_iterable(tables), np.int32)
        chunks = (ChunkSpec * len(batch.chunks))(
            *(ChunkSpec(chunk.start, len(chunk.tokens), first) for chunk, first in zip(batch.chunks, firsts, strict=False))
        )
        step = StepSpec(tokens.ctypes.data, chunks, len(chunks), entries.ctypes.data, len(entries))
        if self._library.begin(self._model, ctypes.byref(step)):
            raise EngineFault(f"there is not enough memory for a step of {len(tokens)} tokens")
