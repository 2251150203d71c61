"""Describes a decoder's modules to the CPU kernels."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from twostep.engine.kernels.cpu.library import LayerSpec, LinearSpec, ModelSpec, NormSpec, RopeSpec
from twostep.engine.kernels.reference import gelu_and_multiply, silu_and_multiply
from twostep.engine.kv_cache import HostKVCache
from twostep.engine.layers.decoder_layer import PreNormLayer, SandwichNormLayer
from twostep.engine.layers.norm import RMSNorm, RMSNormFromOne
from twostep.engine.layers.rope import RopeConfig
from twostep.engine.models.causal_lm import CausalLM
from twostep.engine.models.decoder import Decoder

ACTIVATIONS: Mapping[Callable[[Tensor], Tensor], int] = {silu_and_multiply: 0, gelu_and_multiply: 1}
NO_NORM = NormSpec(None, 0.0)
Layer = PreNormLayer | SandwichNormLayer


def covered(model: CausalLM) -> Decoder | None:
    """Return the model if the kernels can compute all of it, else None."""
    if not isinstance(model, Decoder) or model.facts.head_dim % 2:
        return None
    is_known = all(isinstance(layer, Layer) and layer.mlp.activate in ACTIVATIONS for layer in model.layers)
    return model if is_known else None


class Specs:
    """Makes specifications, and keeps the numbers that they point to."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def model(self, model: Decoder, kv: HostKVCache, *, num_threads: int) -> ModelSpec:
        """`kv` and the embedding stay the caller's."""
        first, embedding = _known(model.layers[0]), model.embed_tokens
        shape = first.self_attn.shape
        ropes = [self._rope(rope.config, rope.frequencies) for rope in model.ropes]
        # As the embedding's own module does, the scale is rounded to the type of what it multiplies.
        scale = 1.0 if embedding.scale is None else float(embedding.weight.new_full((), embedding.scale))
        return ModelSpec(
            num_threads=num_threads,
            dim=shape.dim,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            inner_dim=first.mlp.down_proj.in_features,
            vocab_size=model.facts.vocab_size,
            embedding=embedding.weight.data_ptr(),
            embedding_scale=scale,
            logit_cap=model.logit_cap or 0.0,
            final_norm=self._norm(model.norm),
            ropes=(RopeSpec * len(ropes))(*ropes),
            num_ropes=len(ropes),
            kv=kv.region().address,
            num_blocks=kv.num_blocks,
            block_tokens=kv.layout.block_tokens,
        )

    def layer(self, module: nn.Module, ropes: Sequence[RopeConfig]) -> LayerSpec:
        """`ropes` are the model's, in the order in which it was described."""
        layer = _known(module)
        attention, mlp = layer.self_attn, layer.mlp
        attention_out, mlp_in, mlp_out = _inner_norms(layer)
        return LayerSpec(
            attention_in=self._norm(layer.input_layernorm),
            attention_out=self._norm(attention_out),
            mlp_in=self._norm(mlp_in),
            mlp_out=self._norm(mlp_out),
            query=self._norm(attention.q_norm),
            key=self._norm(attention.k_norm),
            qkv=self._linear(attention.qkv_proj),
            out=self._linear(attention.o_proj),
            gate_up=self._linear(mlp.gate_up_proj),
            down=self._linear(mlp.down_proj),
            rope=ropes.index(attention.kind.rope),
            window=attention.kind.window or 0,
            scale=attention.shape.head_dim**-0.5 if attention.score.scale is None else attention.score.scale,
            cap=attention.score.cap or 0.0,
            activation=ACTIVATIONS[mlp.activate],
        )

    def _norm(self, norm: nn.Module | None) -> NormSpec:
        if norm is None:
            return NO_NORM
        assert isinstance(norm, RMSNorm | RMSNormFromOne)
        return NormSpec(self._keep(norm.scale()), norm.eps)

    def _linear(self, linear: nn.Linear) -> LinearSpec:
        bias = None if linear.bias is None else self._keep(linear.bias.float())
        return LinearSpec(self._keep(linear.weight), bias)

    def _rope(self, config: RopeConfig, frequencies: Tensor) -> RopeSpec:
        return RopeSpec(self._keep(frequencies), len(frequencies), config.magnitude)

    def _keep(self, numbers: Tensor) -> int:
        self._kept.append(numbers.contiguous())
        return self._kept[-1].data_ptr()


def _known(module: nn.Module) -> Layer:
    assert isinstance(module, Layer)
    return module


def _inner_norms(layer: Layer) -> tuple[nn.Module | None, nn.Module, nn.Module | None]:
    """Return the norms of what attention gives, of what the feed-forward block takes, and of what it gives."""
    if isinstance(layer, PreNormLayer):
        return None, layer.post_attention_layernorm, None
    return layer.post_attention_layernorm, layer.pre_feedforward_layernorm, layer.post_feedforward_layernorm
