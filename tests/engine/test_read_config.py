from typing import Any

import pytest
import torch

from twostep.engine.models.read_config import ReadConfig
from twostep.engine.models.registry import build_model
from twostep.tests.engine.tiny_families import FAMILIES


def test_only_what_was_asked_for_counts() -> None:
    one, other = ReadConfig({"eps": 1e-5, "name": "a"}), ReadConfig({"eps": 1e-5, "name": "b"})
    assert one["eps"] == other.get("eps")
    assert one.digest() == other.digest()
    assert one["name"] != other["name"]
    assert one.digest() != other.digest()


def test_a_value_that_is_null_differs_from_one_that_is_not_there() -> None:
    absent, null = ReadConfig({}), ReadConfig({"cap": None})
    assert ("cap" in absent, absent.get("cap")) == (False, None)
    assert ("cap" in null, null.get("cap")) == (True, None)
    assert absent.digest() != null.digest()


def digest_of(family: str, **changes: Any) -> str:
    with torch.device("meta"):
        return build_model(FAMILIES[family].to_dict() | {"architectures": [ARCHITECTURES[family]]} | changes).facts.config


ARCHITECTURES = {"llama": "LlamaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3": "Gemma3ForCausalLM"}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"rms_norm_eps": 1e-3}),
        ("llama", {"rope_theta": 7.0, "rope_parameters": None}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True}),
        ("gemma2", {"query_pre_attn_scalar": 25}),
        ("gemma2", {"attn_logit_softcapping": 49.0}),
        ("gemma2", {"final_logit_softcapping": None}),
        ("gemma2", {"layer_types": ["full_attention"] * 4}),
        ("gemma3", {"sliding_window": 21}),
        ("gemma3", {"final_logit_softcapping": 3.0}),
    ],
)
def test_whatever_changes_a_models_numbers_changes_its_digest(family: str, changes: dict[str, Any]) -> None:
    assert digest_of(family, **changes) != digest_of(family)


@pytest.mark.parametrize("family", list(ARCHITECTURES))
def test_what_changes_nothing_does_not_count(family: str) -> None:
    assert digest_of(family, transformers_version="1", _name_or_path="elsewhere", use_cache=False) == digest_of(family)
