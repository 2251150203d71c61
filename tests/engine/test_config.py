"""What the engine's section of a configuration may hold."""

import pytest

from twostep.core.config import load
from twostep.core.errors import ConfigError
from twostep.engine.config import EngineConfig


def test_a_block_is_a_whole_number_of_hash_blocks() -> None:
    assert load(EngineConfig, overrides=["block_tokens=96"]).block_tokens == 96
    with pytest.raises(ConfigError, match=r"block_tokens.*multiple of 32.*48"):
        load(EngineConfig, overrides=["block_tokens=48"])


@pytest.mark.parametrize("override", ["kv_bytes=0", "max_batch=0", "token_budget=0", "min_prefill_tokens=0", "dtype=float16"])
def test_a_value_that_no_engine_can_work_with_is_named(override: str) -> None:
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        load(EngineConfig, overrides=[override])
