"""The engine's knobs."""

from typing import Annotated, Literal

from pydantic import Field

from twostep.core.block_hash import HASH_BLOCK_TOKENS
from twostep.core.config import config


@config
class EngineConfig:
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Stored type of weights and KV cache."""
    block_tokens: Annotated[int, Field(gt=0, multiple_of=HASH_BLOCK_TOKENS)] = 32
    """Tokens in one KV block."""
    kv_bytes: Annotated[int, Field(gt=0)] | Literal["rest"] = 1 << 30
    """Memory for the KV cache. `rest` is for a node that has its device or container to itself: what weights, workspace,
    landing pool and a reserve of 5 % leave of it."""
    max_model_tokens: Annotated[int, Field(gt=1)] | None = None
    """Longest sequence, prompt and answer together; unset: what the model allows."""
    max_batch: Annotated[int, Field(gt=0)] = 32
    """Requests that may hold a place in the batch at once, those that wait for their KV included."""
    token_budget: Annotated[int, Field(gt=0)] = 512
    """Tokens one step computes at most, decodes first."""
    min_prefill_tokens: Annotated[int, Field(gt=0)] = 32
    """Prompt tokens a step computes at least when prompts wait, however many decodes there are."""
    layer_group: Annotated[int, Field(gt=0)] = 2
    """Layers whose KV is handed off together."""
    num_threads: Annotated[int, Field(gt=0)] | None = None
    """CPU threads the model computes with; unset: `OMP_NUM_THREADS`, or one for each core that this process may use."""
    kernels: Literal["auto", "avx512bf16", "avx2", "portable", "torch"] = "auto"
    """What computes on CPU: kernels compiled for the best instructions here, for those named, or torch alone. Nodes that hand
    KV to each other must compute alike: in a fleet of unequal processors, name what all of them have."""
