"""Each family against `transformers`: the same logits however a prompt is cut, the same tokens across a handoff."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from twostep.core.errors import ConfigError
from twostep.core.ids import BlockId, RequestId
from twostep.core.request import SamplingParams
from twostep.engine.batch import Batch, Chunk, Draw
from twostep.engine.config import EngineConfig
from twostep.engine.engine import Engine
from twostep.engine.model_folder import open_model_folder
from twostep.engine.torch_runner import TorchRunner
from twostep.engine.weights import empty_model
from twostep.tests.engine.by_hand import ATTEMPT, Carrier
from twostep.tests.engine.fakes import ask, drain, tokens_by_request
from twostep.tests.engine.tiny_families import FACTORS, FAMILIES, Oracle, write_tiny

pytestmark = pytest.mark.model

TOKENS: list[int] = torch.randint(131, (620,), generator=torch.Generator().manual_seed(1)).tolist()
GREEDY = Draw(SamplingParams(seed=0, temperature=0.0), index=0)


def config_of(**changes: Any) -> EngineConfig:
    return EngineConfig(**{"dtype": "float32", "kv_bytes": 1 << 22, "layer_group": 3, "num_threads": 1, **changes})


def logits(runner: TorchRunner, start: int, end: int) -> Tensor:
    """Compute the tokens [start, end) in one chunk; return the logits after the last of them."""
    table = tuple(BlockId(40 - block) for block in range(-(-end // 32)))
    chunk = Chunk(RequestId("r"), tuple(TOKENS[start:end]), start, table, GREEDY)
    return runner.logits(Batch((chunk,)), lambda _: None)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_chunked_prefill_and_decode_give_the_logits_of_transformers(family: str, kernels: str, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "m", family)
    runner, expected = TorchRunner(folder, config_of(kernels=kernels)), Oracle(folder).logits(TOKENS)
    for end in (1, 33, 90, 600):
        assert_close(logits(runner, 0, end), expected[end - 1])
    for start, end in ((0, 19), (19, 64), (64, 65), (65, 601), *((at, at + 1) for at in range(601, 606)), (606, 620)):
        assert_close(logits(runner, start, end), expected[end - 1])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_handoff_with_and_without_a_hit_brings_the_tokens_of_transformers(family: str, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "m", family)
    oracle = Oracle(folder)
    carrier = Carrier(engine_of(folder, token_budget=37), engine_of(folder, block_tokens=64))
    cold = ask("cold", TOKENS[:150], max_tokens=6)
    warm = ask("warm", TOKENS[:130] + TOKENS[:11], max_tokens=6, temperature=1.0)
    for request, num_missing in ((cold, 150), (warm, 141 - 128)):
        leg = carrier.open(request)
        (first,) = tokens_by_request(drain(carrier.source))[request.id]
        carrier.carry(leg)
        carrier.source.release(request.id)
        carrier.destination.attach(request.id, first, attempt=ATTEMPT)
        rest = tokens_by_request(drain(carrier.destination))[request.id]
        assert len(leg.missing) == num_missing
        assert [first, *rest] == oracle.answer(request)
    assert carrier.num_mismatched == 0


def engine_of(folder: Path, **changes: Any) -> Engine:
    config = config_of(**changes)
    return Engine(TorchRunner(folder, config), config, clock=lambda: 0.0)


@pytest.mark.parametrize("family", ["qwen3, biases", "gemma2", "gemma3", "phi3, partial longrope"])
def test_bfloat16_is_as_near_to_float32_as_transformers_bfloat16(family: str, kernels: str, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "m", family, torch.bfloat16)
    runner, ends = TorchRunner(folder, config_of(dtype="bfloat16", kernels=kernels)), range(9, 100, 10)
    right, theirs = (Oracle(folder, dtype).logits(TOKENS[:100])[9::10] for dtype in (torch.float32, torch.bfloat16))
    ours = torch.stack([logits(runner, 0, end + 1) for end in ends])
    assert (ours - right).norm() <= 1.1 * (theirs - right).norm()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["mistral, windows", "qwen3", "gemma2", "gemma3"])
def test_chunks_change_no_bit_of_the_logits(family: str, dtype: str, kernels: str, tmp_path: Path) -> None:
    runner = TorchRunner(write_tiny(tmp_path / "m", family), config_of(dtype=dtype, kernels=kernels))
    alone = logits(runner, 0, 550)
    for start, end in pairwise((0, 1, 3, 40, 41, 200, 512, 549, 550)):
        last = logits(runner, start, end)
    assert torch.equal(last, alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_read_from_shards_of_any_type(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "m", "gemma3", dtype, max_shard_size="40KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    assert_close(logits(TorchRunner(folder, config_of()), 0, 50), Oracle(folder).logits(TOKENS[:50])[-1])


OLDER: dict[str, tuple[str, dict[str, Any]]] = {
    "rope_theta beside": ("qwen3", {"rope_theta": 5000, "rope_scaling": None}),
    "llama3": (
        "llama",
        {
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "local theta": (
        "gemma3",
        {
            "layer_types": None,
            "sliding_window_pattern": 3,
            "rope_theta": 1000000,
            "rope_local_base_freq": 20000,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "longrope": ("phi3, partial longrope", {"rope_theta": 10000.0, "rope_scaling": {"type": "longrope", **FACTORS}}),
}
"""As the folders say it that were written before `rope_parameters`; what is None is taken away."""


@pytest.mark.parametrize("case", OLDER)
def test_a_config_in_the_older_form_means_what_transformers_makes_of_it(case: str, tmp_path: Path) -> None:
    family, older = OLDER[case]
    folder = write_tiny(tmp_path / "m", family)
    edit(folder, {"rope_parameters": None, **older})
    assert_close(logits(TorchRunner(folder, config_of()), 0, 100), Oracle(folder).logits(TOKENS[:100])[-1])


@pytest.mark.parametrize(
    ("family", "rope", "sliding_window"),
    [
        ("qwen2", "halves:dim=16:theta=10000.0:magnitude=1.0:scaling=none", "none"),
        ("qwen2, windows", "halves:dim=16:theta=10000.0:magnitude=1.0:scaling=none", "2xnone 2x20"),
        ("mistral, windows", "halves:dim=16:theta=10000.0:magnitude=1.0:scaling=none", "33"),
        (
            "gemma3",
            "2xhalves:dim=32:theta=10000.0:magnitude=1.0:scaling=none "
            "1xhalves:dim=32:theta=1000000.0:magnitude=1.0:scaling=none "
            "1xhalves:dim=32:theta=10000.0:magnitude=1.0:scaling=none",
            "2x20 1xnone 1x20",
        ),
    ],
)
def test_a_fingerprint_tells_what_each_layer_sees(family: str, rope: str, sliding_window: str, tmp_path: Path) -> None:
    found = TorchRunner(write_tiny(tmp_path / "m", family), config_of()).fingerprint
    assert (found.rope, found.sliding_window) == (rope, sliding_window)


def test_a_window_that_no_sequence_outgrows_is_none(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "m", "phi3")
    edit(folder, {"sliding_window": 1024})
    assert TorchRunner(folder, config_of()).fingerprint.sliding_window == "none"


def test_longrope_takes_no_more_tokens_than_its_short_factors_are_for(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "m", "phi3, partial longrope")
    assert TorchRunner(folder, config_of()).geometry.max_model_tokens == 640
    with pytest.raises(ConfigError, match="max_model_tokens = 641: this model takes at most 640 tokens"):
        TorchRunner(folder, config_of(max_model_tokens=641))


YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("llama", {"architectures": None}, "architecture none is not supported"),
        ("llama", {"is_causal": False}, "is_causal = False is not supported, only True"),
        ("llama", {"num_key_value_heads": 3}, "num_attention_heads = 4 is no multiple of 3 key-value heads"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers should be at least 1, found 0"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads should be at least 1, found 0"),
        ("qwen2", {"rope_parameters": YARN}, "rope type 'yarn' is not supported, only default, linear, llama3, longrope, su"),
        ("qwen2", {"rope_scaling": {"type": "default", "mrope_section": [1]}}, "mrope_section is not supported for rope type"),
        ("qwen3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types names 1 layers, num_hidden_layers is 4"),
        ("qwen3", {"layer_types": ["linear_attention"] * 4}, "layer type 'linear_attention' is not supported"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 4}, "layer_types has sliding_attention, and there is no sliding"),
        ("mistral", {"layer_types": ["full_attention"] * 4}, "layer_types = .* is not supported"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 is not supported, only None"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True is not supported"),
        ("gemma3", {"hidden_activation": "silu"}, "hidden_activation = 'silu' is not supported, only 'gelu_pytorch_tanh'"),
        (
            "gemma3",
            {"rope_parameters": {"rope_theta": 7.0}},
            "rope_parameters should hold full_attention and sliding_attention",
        ),
        ("phi3", {"rope_scaling": {"type": "longrope", **FACTORS}}, "short_factor should hold 8 numbers, found 6"),
    ],
)
def test_what_would_be_computed_wrong_is_refused_by_name(
    family: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = write_tiny(tmp_path / "m", family)
    edit(folder, changes)
    with pytest.raises(ConfigError, match=reason):
        empty_model(open_model_folder(folder))


def edit(folder: Path, changes: dict[str, Any]) -> None:
    """Change a folder's configuration; what is to be None is taken out of it."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if changes.get(key, "kept") is not None}))


def assert_close(found: Tensor, expected: Tensor) -> None:
    # Without fused multiply-add, Gemma 2's steep random layers make 1.2e-4 of what are last bits before them.
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)
