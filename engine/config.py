"""The engine's knobs."""

from typing import Annotated, Literal

from pydantic import Field

from twostep.core.block_hash import HASH_BLOCK_TOKENS
from twostep.core.config import Seconds, config

Count = Annotated[int, Field(gt=0)]


@config
class SchedulingConfig:
    """Which requests a step serves, and how much of their prompts."""

    tpot_target_s: Seconds = 0.1
    """Time between two tokens that running requests should see, where they do not say so themselves."""
    step_share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The share of that which a step may take: by the measured cost of decodes and of prompt tokens it computes as many of
    these as fit, within `engine.min_prefill_tokens` and `engine.token_budget`."""
    max_wait_s: Seconds = 2.0
    """A prompt of which nothing was computed for this long comes first with `engine.min_prefill_tokens`, one in each step."""
    urgent_s: Seconds = 1.0
    """Prompts with less slack than this towards their deadlines come first, the least slack before the others."""
    aging_s: Seconds = 10.0
    """A request gains one level of priority for every such time that it has been waiting since it came to its router."""
    hopeless: Literal["serve_last", "refuse"] = "serve_last"
    """What becomes of a request whose prompt cannot be computed by its deadline any more."""
    turn_tokens: Count = 512
    """How many prompt tokens of one tenant are computed before it is another's turn."""
    min_run_tokens: Count = 16
    """A request that has drawn fewer tokens than this since it got its blocks is not preempted while others can be."""
    max_preemptions: Count = 3
    """A request that was preempted this often is not preempted again while others can be."""
    resume_spare_blocks: Annotated[int, Field(ge=0)] = 1
    """Blocks beyond its next that have to be free before a preempted request is resumed beside running ones."""


@config
class EngineConfig:
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What the model is computed on; `auto`: a GPU where torch sees one. A node that is to have one says `cuda`, and exits
    without."""
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
    """Tokens one step computes at most, decodes first; beside decodes as few as `scheduling.step_share` asks for."""
    min_prefill_tokens: Annotated[int, Field(gt=0)] = 32
    """Prompt tokens a step computes at least when prompts wait, however many decodes there are."""
    scheduling: SchedulingConfig = SchedulingConfig()
    layer_group: Annotated[int, Field(gt=0)] = 2
    """Layers whose KV is handed off together."""
    num_threads: Annotated[int, Field(gt=0)] | None = None
    """CPU threads the model computes with; unset: `OMP_NUM_THREADS`, or one for each core that this process may use."""
    kernels: Literal["auto", "avx512bf16", "avx512", "avx2", "portable", "torch"] = "auto"
    """What computes on CPU: kernels compiled for the best instructions here, for those named, or torch alone. Nodes that hand
    KV to each other must compute alike: in a fleet of unequal processors, name what all of them have. On a GPU: Triton's
    kernels, or torch alone."""
    max_graph_batch: Annotated[int, Field(ge=0)] | None = None
    """Decode steps of at most so many requests are replayed from CUDA graphs on a GPU; unset: all of `max_batch`; 0: none."""
