"""A runner without a model: its next token is a hash of what lies in the KV blocks, so a wrong byte changes the answer.

Like attention, the KV of a token in one layer depends on the KV of all tokens up to it in the layer below, as it lies in
the blocks at that moment. All is integer arithmetic: neither chunking nor block size nor batch mates change a bit.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from hashlib import blake2b
from typing import Annotated

import numpy as np
from pydantic import Field

from twostep.core.block_hash import HASH_SCHEME, SALT_RULE
from twostep.core.digest import DIGEST_VERSION, Digests, Words, layer_coefficients, splitmix64, token_coefficients
from twostep.core.errors import ConfigError
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.core.ids import RequestId
from twostep.core.kv_layout import KVLayout
from twostep.engine.batch import UNKNOWN_TOKEN, Batch, Chunk, Draw
from twostep.engine.config import EngineConfig
from twostep.engine.kv_cache import HostKVCache
from twostep.engine.memory_budget import Needs, available_host_bytes, plan_memory
from twostep.engine.runner import Collect, Drawn, OnLayers, Ran

Count = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class FakeModel:
    """What the fake model looks like. A step takes `step_s`, and `token_s` more for each of its tokens.

    With `eos_after` set, output number `eos_after` (from 0) and every later one is `eos_id`. Like a device it may have `depth`
    batches launched at once.
    """

    vocab_size: Count = 1000
    num_layers: Count = 4
    num_kv_heads: Count = 2
    head_dim: Count = 8
    max_model_tokens: Count = 8192
    eos_id: int = 0
    eos_after: int | None = None
    step_s: Seconds = 0.0
    token_s: Seconds = 0.0
    depth: Count = 1


NO_PART_OF_THE_MODEL = ("step_s", "token_s", "depth")
"""How fast the answers come, and when, changes none of them."""


class FakeRunner:
    """Implements `Runner` with numpy alone. Raises ConfigError when the configuration asks what the model cannot do.

    A batch is computed as late as can be, when it is collected: whatever is done too early to the blocks of a batch that was
    launched shows in its answers. `on_run` is called with each batch before it is computed: tests pause there, or raise.
    """

    kernels = "fake"
    report = None

    def __init__(
        self,
        model: FakeModel,
        config: EngineConfig,
        *,
        on_run: Callable[[Batch], None] | None = None,
        landing_bytes: int = 0,
    ) -> None:
        layout = KVLayout(model.num_layers, model.num_kv_heads, model.head_dim, config.block_tokens, config.dtype)
        _require_feasible(model, config)
        self.memory = plan_memory(config.kv_bytes, layout.block_bytes, Needs(0, 0, landing_bytes), available_host_bytes())
        self.kv = HostKVCache(layout, self.memory.kv // layout.block_bytes)
        self.fingerprint = _fingerprint(model, layout)
        self.geometry = Geometry(
            block_tokens=config.block_tokens,
            max_model_tokens=config.max_model_tokens or model.max_model_tokens,
            layer_group=min(config.layer_group, model.num_layers),
            first_head=0,
            end_head=model.num_kv_heads,
        )
        places = (model.num_layers, model.num_kv_heads, layout.head_token_bytes // 4)
        self._by_word = layer_coefficients(0, *places)
        self._places = splitmix64(np.arange(np.prod(places), dtype=np.uint64)).reshape(places)
        self._model = model
        self._on_run = on_run
        self.depth = model.depth
        self._last: deque[dict[RequestId, Drawn]] = deque(maxlen=model.depth)

    def launch(self, batch: Batch, on_layers: OnLayers) -> Collect:
        return lambda: Ran(self._run(batch, on_layers))

    def _run(self, batch: Batch, on_layers: OnLayers) -> list[Drawn]:
        batch = Batch(tuple(map(self._with_known_tokens, batch.chunks)))
        drawn = self._compute(batch, on_layers)
        self._last.append({chunk.request: each for chunk, each in zip(batch.chunks, drawn, strict=True)})
        return drawn

    def _with_known_tokens(self, chunk: Chunk) -> Chunk:
        if chunk.tokens != (UNKNOWN_TOKEN,):
            return chunk
        token = next(drawn[chunk.request] for drawn in reversed(self._last) if chunk.request in drawn)
        assert isinstance(token, int)
        return replace(chunk, tokens=(token,))

    def _compute(self, batch: Batch, on_layers: OnLayers) -> list[Drawn]:
        if self._on_run:
            self._on_run(batch)
        if duration_s := self._model.step_s + self._model.token_s * batch.num_tokens:
            time.sleep(duration_s)
        seen = [self._seen(chunk.start, chunk) for chunk in batch.chunks]
        states = [_token_states(chunk) for chunk in batch.chunks]
        for first in range(0, self._model.num_layers, self.geometry.layer_group):
            layers = range(first, min(first + self.geometry.layer_group, self._model.num_layers))
            for layer in layers:
                states = [self._write(layer, *each) for each in zip(batch.chunks, seen, states, strict=True)]
            on_layers(layers)
        return [self._draw(chunk, chunk.draw) if chunk.draw else None for chunk in batch.chunks]

    def _seen(self, num_tokens: int, chunk: Chunk) -> Digests:
        """Return the digest of positions [0, `num_tokens`) as they lie in the chunk's blocks, as uint64 [layer]."""
        num_blocks = self.kv.layout.num_blocks(num_tokens)
        words = self.kv.words[:, chunk.blocks[:num_blocks]].astype(np.uint64)
        by_token = token_coefficients(0, num_blocks * self.kv.layout.block_tokens).copy()
        by_token[num_tokens:] = 0
        per_token = np.einsum("lbhtw,lhw->lbt", words, self._by_word)
        return np.asarray(per_token.reshape(len(words), -1) @ by_token)

    def _write(self, layer: int, chunk: Chunk, seen: Digests, states: Digests) -> Digests:
        """Write one layer's KV of a chunk and return the states [token] of the layer above."""
        words = self._words(layer, states)
        blocks, offsets = np.divmod(np.arange(chunk.start, chunk.end), self.kv.layout.block_tokens)
        self.kv.words[layer][np.asarray(chunk.blocks)[blocks], :, offsets] = words
        by_token = token_coefficients(chunk.start, len(chunk.tokens))
        per_token = np.einsum("thw,hw->t", words.astype(np.uint64), self._by_word[layer]) * by_token
        return splitmix64(states + seen[layer] + np.cumsum(per_token, dtype=np.uint64))

    def _words(self, layer: int, states: Digests) -> Words:
        """Return the KV words [token, head, word] that follow from the states [token]."""
        return (splitmix64(states[:, None, None] ^ self._places[layer]) >> np.uint64(32)).astype(np.uint32)

    def _draw(self, chunk: Chunk, draw: Draw) -> int:
        model = self._model
        if model.eos_after is not None and draw.index >= model.eos_after:
            return model.eos_id
        seen = self._seen(chunk.end, chunk).tobytes()
        if draw.sampling.temperature > 0:
            seen += f"{draw.sampling.seed}:{draw.choice}:{draw.index}".encode()
        return int.from_bytes(blake2b(seen, digest_size=8).digest(), "little") % model.vocab_size


def _token_states(chunk: Chunk) -> Digests:
    """Return what the lowest layer knows of each token: its id and position, as uint64 [token]."""
    positions = np.arange(chunk.start, chunk.end, dtype=np.uint64)
    return splitmix64(np.asarray(chunk.tokens, dtype=np.uint64) ^ splitmix64(positions))


def _require_feasible(model: FakeModel, config: EngineConfig) -> None:
    if config.max_model_tokens and config.max_model_tokens > model.max_model_tokens:
        raise ConfigError(
            f"engine.max_model_tokens = {config.max_model_tokens}: this model takes at most {model.max_model_tokens} tokens"
        )


def _fingerprint(model: FakeModel, layout: KVLayout) -> Fingerprint:
    contents = astuple(model)[: -len(NO_PART_OF_THE_MODEL)]
    return Fingerprint(
        model="fake",
        weights=blake2b(repr(contents).encode(), digest_size=16).hexdigest(),
        tokenizer="fake",
        layout=layout.layout_id,
        dtype=layout.dtype,
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        rope="none",
        numerics="fake",
        model_config="fake",
        sampler="fake",
        hash_scheme=HASH_SCHEME,
        salt_rule=SALT_RULE,
        digest=DIGEST_VERSION,
    )
