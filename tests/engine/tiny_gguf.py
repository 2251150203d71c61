"""A tiny Llama model as a GGUF file, written as llama.cpp's converter writes it."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from twostep.tests.engine.tiny_llama import SHAPE, TinyLlama

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "embed_tokens": "token_embd",
    "lm_head": "output",
    "norm": "output_norm",
}


def train_tokenizer(vocab_size: int, text: Sequence[str]) -> Tokenizer:
    """Return a byte-level BPE tokenizer that splits digits, the kind that SmolLM has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


def write_gguf(path: Path, tiny: TinyLlama, tokenizer: Tokenizer) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(SHAPE["hidden_size"] // SHAPE["num_attention_heads"])
    add_tokenizer(writer, tokenizer)
    for name, tensor in tiny.oracle.state_dict().items():
        add_tensor(writer, name, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer) -> None:
    vocab = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    merges = [" ".join(pair) for pair in bpe_merges(tokenizer)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocab)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in vocab])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)


def bpe_merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def add_tensor(writer: GGUFWriter, name: str, values: NDArray[np.float32]) -> None:
    *path, kind = name.removeprefix("model.").split(".")
    if path[0] == "layers":
        part = ".".join(path[2:])
        heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}.get(part)
        if heads:
            values = permute(values, SHAPE[heads])
        writer.add_tensor(f"blk.{path[1]}.{PARTS[part]}.{kind}", values)
    else:
        writer.add_tensor(f"{PARTS[path[0]]}.{kind}", values)


def permute(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Reorder each head's rows from halves to neighbouring pairs, row by row."""
    dim = len(rows) // num_heads
    order = [head * dim + half * (dim // 2) + pair for head in range(num_heads) for pair in range(dim // 2) for half in (0, 1)]
    return np.ascontiguousarray(rows[order])
