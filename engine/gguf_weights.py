"""Converts the weights and the configuration in a Llama GGUF file to Hugging Face's format, in bfloat16."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from safetensors.torch import save_file

from twostep.core.errors import ConfigError

OnTensors = Callable[[int, int], None]
"""Called with the number of tensors converted and the number of all."""

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_weights(gguf: Path, folder: Path, on_tensors: OnTensors) -> None:
    """Write model.safetensors, config.json and generation_config.json of the model in `gguf` into the existing `folder`.

    Raises ConfigError for an architecture or tensor that is not known here.
    """
    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama":
        raise ConfigError(f"{gguf.name}: cannot convert architecture {fields['general.architecture']}: only llama is known")
    weights = dict(_weights(reader, fields, on_tensors))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", _config(fields, weights))
    _write_json(folder / "generation_config.json", _token_ids(fields))


def _weights(reader: Any, fields: Mapping[str, Any], on_tensors: OnTensors) -> Iterator[tuple[str, torch.Tensor]]:
    num_heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    for done, tensor in enumerate(reader.tensors, start=1):
        values = dequantize(tensor.data, tensor.tensor_type)
        for part, heads in num_heads.items():
            if f".{part}." in tensor.name:
                values = unpermute(values, heads)
        yield hugging_face_name(tensor.name), torch.from_numpy(np.array(values)).to(torch.bfloat16)
        on_tensors(done, len(reader.tensors))


def hugging_face_name(name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor, such as `blk.3.attn_q.weight`."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    block, _, rest = name.removeprefix("blk.").partition(".")
    part, _, kind = rest.partition(".")
    if not block.isdigit() or part not in _LAYER_NAMES or kind not in ("weight", "bias"):
        raise ConfigError(f"cannot convert tensor {name}: not a part of a Llama model that is known here")
    return f"model.layers.{block}.{_LAYER_NAMES[part]}.{kind}"


def unpermute(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Return q or k weights with each head's rows in halves, as Hugging Face's rope wants them.

    GGUF stores the two numbers that rope turns together side by side: [head, dim / 2, 2].
    """
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _config(fields: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    def llama(key: str) -> Any:
        return fields[f"llama.{key}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": llama("embedding_length"),
        "intermediate_size": llama("feed_forward_length"),
        "num_hidden_layers": llama("block_count"),
        "num_attention_heads": llama("attention.head_count"),
        "num_key_value_heads": llama("attention.head_count_kv"),
        "head_dim": llama("rope.dimension_count"),
        "max_position_embeddings": llama("context_length"),
        # Stored as float32: printed with the digits it was written with.
        "rms_norm_eps": float(str(np.float32(llama("attention.layer_norm_rms_epsilon")))),
        "rope_theta": llama("rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "vocab_size": len(weights["model.embed_tokens.weight"]),
        **_token_ids(fields),
    }


def _token_ids(fields: Mapping[str, Any]) -> dict[str, int]:
    roles = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {key: fields[f"tokenizer.ggml.{role}_token_id"] for key, role in roles.items()}


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
