"""A model folder is read whole or refused in one line: sharded or not, whatever is missing, left over or broken."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from twostep.core.errors import ConfigError
from twostep.engine.model_folder import open_model_folder
from twostep.engine.weights import empty_model, load_weights, own, source_names, weight_bytes, workspace_bytes
from twostep.tests.engine.tiny_llama import VARIANTS, write_tiny_llama

INDEX = "model.safetensors.index.json"


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    opened = open_model_folder(folder)
    model = empty_model(opened)
    load_weights(model, opened, torch.float32, torch.device("cpu"))
    return dict(model.as_module().named_parameters())


def test_packed_parameters_are_their_parts_stacked(tmp_path: Path) -> None:
    oracle = write_tiny_llama(tmp_path).oracle.state_dict()
    loaded = parameters(tmp_path)
    parts = [oracle[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(loaded["layers.1.self_attn.qkv_proj.weight"], torch.cat(parts))
    assert torch.equal(loaded["norm.weight"], oracle["model.norm.weight"])
    assert torch.equal(loaded["lm_head.weight"], oracle["lm_head.weight"])


def test_a_sharded_folder_loads_like_a_single_file(tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path / "one")
    tiny.oracle.save_pretrained(tmp_path / "many", max_shard_size="40KB")
    (tmp_path / "many" / "tokenizer.json").write_text("{}")
    assert len(open_model_folder(tmp_path / "many").weight_files) > 2
    one, many = parameters(tmp_path / "one"), parameters(tmp_path / "many")
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_the_size_of_the_weights_is_known_before_they_are_read(tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path, **VARIANTS["tied"])
    model = empty_model(open_model_folder(tmp_path))
    assert weight_bytes(model, torch.bfloat16) == 2 * tiny.oracle.num_parameters()


def test_the_size_of_each_parameter_is_told_as_it_is_loaded(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    opened, told = open_model_folder(tmp_path), list[int]()
    model = empty_model(opened)
    load_weights(model, opened, torch.float32, torch.device("cpu"), told.append)
    assert told == [parameter.nbytes for parameter in model.as_module().parameters()]
    assert sum(told) == weight_bytes(model, torch.float32)


def test_what_was_made_ones_own_does_not_change_with_the_file(tmp_path: Path) -> None:
    """Without that, it does: a tensor that is stored as it is wanted stays a view of the file's pages."""
    write_tiny_llama(tmp_path)
    opened = open_model_folder(tmp_path)
    views, copies = empty_model(opened), empty_model(opened)
    for model in (views, copies):
        load_weights(model, opened, torch.float32, torch.device("cpu"))
    own(copies.as_module())
    before = copies.as_module().get_parameter("norm.weight").clone()
    (file,) = opened.weight_files
    with file.open("r+b") as opened_file:
        opened_file.seek(-file.stat().st_size // 2, 2)
        opened_file.write(bytes(file.stat().st_size // 2))
    assert torch.equal(copies.as_module().get_parameter("norm.weight"), before)
    assert not torch.equal(views.as_module().get_parameter("norm.weight"), before)


def test_the_workspace_is_a_steps_widest_layer_and_its_logits(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    model = empty_model(open_model_folder(tmp_path))
    linears = [
        module
        for name, module in model.as_module().named_modules()
        if name.startswith("layers.0.") and isinstance(module, torch.nn.Linear)
    ]
    widths = sum(linear.in_features + linear.out_features for linear in linears)
    assert workspace_bytes(model, token_budget=100, max_batch=4) == 4 * (100 * widths + 3 * 4 * model.facts.vocab_size)


def test_source_names_unpack_a_module() -> None:
    packed = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}
    assert source_names("layers.3.attn.qkv_proj.bias", packed) == [f"layers.3.attn.{part}_proj.bias" for part in "qkv"]
    assert source_names("norm.weight", packed) == ["norm.weight"]


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value != "gone"}))

    return edit


def edit_tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return edit


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).write_text(text)

    return edit


def cut_off(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def index_without_its_shards(folder: Path) -> None:
    write(INDEX, json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model.safetensors"}}))(folder)


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (remove("config.json"), "config.json is missing"),
    "config is no JSON": (write("config.json", "{"), "config.json cannot be read"),
    "config is no object": (write("config.json", "[]"), "config.json should hold an object"),
    "no tokenizer": (remove("tokenizer.json"), "tokenizer.json is missing"),
    "no weights": (remove("model.safetensors"), f"neither model.safetensors nor {INDEX} is there"),
    "weights cut off": (cut_off, "model.safetensors is broken"),
    "shard missing": (index_without_its_shards, f"{INDEX} names model-1.safetensors, missing"),
    "quantized": (edit_config(quantization_config={"bits": 4}), "quantized weights are not supported"),
    "unknown architecture": (
        edit_config(architectures=["GPT2LMHeadModel"]),
        "architecture GPT2LMHeadModel is not supported, only .*LlamaForCausalLM, MistralForCausalLM",
    ),
    "key missing": (edit_config(intermediate_size="gone"), "intermediate_size is missing"),
    "key of the wrong type": (edit_config(vocab_size="many"), "vocab_size should be of type int, found 'many'"),
    "other activation": (edit_config(hidden_act="gelu"), "hidden_act = 'gelu' is not supported, only 'silu'"),
    "other rope": (edit_config(rope_parameters={"rope_type": "yarn", "rope_theta": 1.0}), "rope type 'yarn'"),
    "tensor missing": (edit_tensors(lambda t: t.pop("model.norm.weight")), "tensor model.norm.weight is missing"),
    "bias left over": (
        edit_tensors(lambda t: t.update({"model.layers.0.mlp.up_proj.bias": torch.zeros(80)})),
        "1 tensors have no place in this model, such as model.layers.0.mlp.up_proj.bias",
    ),
    "wrong shape": (
        edit_config(vocab_size=132),
        r"model.embed_tokens.weight has the shape \[131, 48\], config.json makes it \[132, 48\]",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_refused_in_one_line_that_names_the_cause(case: str, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    break_it, reason = BROKEN[case]
    break_it(tmp_path)
    with pytest.raises(ConfigError, match=reason) as caught:
        parameters(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        open_model_folder(tmp_path / "nowhere")


def test_what_a_folder_may_hold_in_excess_is_ignored(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, **VARIANTS["tied"])

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)

    edit_tensors(add)(tmp_path)
    assert "lm_head.weight" not in parameters(tmp_path)


def test_the_older_spelling_of_the_rotation_means_the_same(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, **VARIANTS["llama3 rope"])
    new = empty_model(open_model_folder(tmp_path)).facts.rope
    rope = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    theta = rope.pop("rope_theta")
    edit_config(rope_parameters="gone", rope_theta=theta, rope_scaling=rope)(tmp_path)
    assert empty_model(open_model_folder(tmp_path)).facts.rope == new
