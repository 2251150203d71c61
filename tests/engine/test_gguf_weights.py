"""A converted GGUF is the model it was made from."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file

from twostep.core.errors import ConfigError
from twostep.engine.gguf_weights import convert_weights, hugging_face_name, unpermute
from twostep.tests.engine.tiny_gguf import permute, train_tokenizer, write_gguf
from twostep.tests.engine.tiny_llama import write_tiny_llama


@pytest.mark.parametrize("tied", [False, True])
def test_conversion_gives_back_weights_and_configuration_in_bfloat16(tied: bool, tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path / "m", tie_word_embeddings=tied, vocab_size=300)
    if tied:
        del tiny.oracle.lm_head
    write_gguf(tmp_path / "m.gguf", tiny, train_tokenizer(300, ["some text to train on, some more"]))
    (tmp_path / "out").mkdir()
    seen: list[tuple[int, int]] = []
    convert_weights(tmp_path / "m.gguf", tmp_path / "out", lambda done, total: seen.append((done, total)))
    expected = tiny.oracle.state_dict()
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name].bfloat16()) for name in found)
    assert seen == [(done, len(found)) for done in range(1, len(found) + 1)]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["rms_norm_eps"], config["head_dim"]) == (tied, 1e-6, 8)
    assert (config["vocab_size"], config["eos_token_id"], config["num_key_value_heads"]) == (300, 2, 2)


def test_unpermute_undoes_what_the_gguf_converter_does() -> None:
    rows = np.arange(24 * 5, dtype=np.float32).reshape(24, 5)
    np.testing.assert_array_equal(unpermute(permute(rows, 3), 3), rows)


def test_names_follow_hugging_face() -> None:
    assert hugging_face_name("blk.12.ffn_gate.weight") == "model.layers.12.mlp.gate_proj.weight"
    assert hugging_face_name("output_norm.weight") == "model.norm.weight"


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "blk.x.attn_q.weight", "blk.0.attn_q"])
def test_a_tensor_that_is_not_known_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot convert tensor {name}"):
        hugging_face_name(name)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "gemma")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="cannot convert architecture gemma: only llama is known"):
        convert_weights(tmp_path / "m.gguf", tmp_path, lambda _done, _total: None)
