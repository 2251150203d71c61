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
    """Target for the time between two tokens of a request that names none itself."""
    step_share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The share of that target which a step may take. By measured costs, a step computes as many prompt tokens beside its
    decodes as fit, within `engine.min_prefill_tokens` and `engine.token_budget`."""
    max_wait_s: Seconds = 2.0
    """A prompt that has waited this long gets `engine.min_prefill_tokens` before any other, one such prompt in each step."""
    urgent_s: Seconds = 1.0
    """Prompts with less slack than this before their deadlines come first, the one with the least slack before the others."""
    aging_s: Seconds = 10.0
    """A request gains one level of priority each time it has waited this long, counted from its arrival at the router. Those
    before the usual priority, 0, so or by their own, precede whatever wishes those of it have; slack decides among equals."""
    hopeless: Literal["serve_last", "refuse"] = "serve_last"
    """What to do with a request whose prompt can no longer be computed by its deadline."""
    turn_tokens: Count = 512
    """How many prompt tokens of one tenant are computed before the next one's turn."""
    min_run_tokens: Count = 16
    """A request that has generated fewer tokens than this since it got its blocks is not preempted while others can be."""
    max_preemptions: Count = 3
    """A request that was preempted this often is not preempted again while others can be."""
    resume_spare_blocks: Annotated[int, Field(ge=0)] = 1
    """Free blocks, beyond its own next one, that a preempted request needs to be resumed while others run."""


@config
class EngineConfig:
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What the model is computed on. `auto` is a GPU where torch sees one; with `cuda` a node without a GPU exits."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Stored type of weights and KV cache."""
    block_tokens: Annotated[int, Field(gt=0, multiple_of=HASH_BLOCK_TOKENS)] = 32
    """Tokens in one KV block."""
    kv_bytes: Annotated[int, Field(gt=0)] | Literal["rest"] = 1 << 30
    """Memory for the KV cache. `rest` takes what weights, workspace, landing pool and a reserve of 5 % leave; it is for a node
    that has its device or container to itself."""
    max_model_tokens: Annotated[int, Field(gt=1)] | None = None
    """Longest sequence, prompt and answer together; unset: what the model allows."""
    max_batch: Annotated[int, Field(gt=0)] = 32
    """Most requests that hold a place in the batch at once, including those that wait for their KV."""
    token_budget: Annotated[int, Field(gt=0)] = 512
    """Most tokens that one step computes, decodes first; `scheduling.step_share` may allow fewer beside decodes."""
    min_prefill_tokens: Annotated[int, Field(gt=0)] = 32
    """Fewest prompt tokens that a step computes while prompts wait, however many decodes there are."""
    scheduling: SchedulingConfig = SchedulingConfig()
    layer_group: Annotated[int, Field(gt=0)] = 2
    """How many layers' KV is handed off together."""
    num_threads: Annotated[int, Field(gt=0)] | None = None
    """CPU threads that compute the model; unset: `OMP_NUM_THREADS`, or one for each core that this process may use."""
    own_cores: bool = False
    """Whether no other program computes on the cores of a node on CPU, as where a container has cores to itself. Model steps
    then take only what nothing else wants of a core, and no reservation waits for one; where others compute, they starve. A
    node on a GPU refuses it."""
    kernels: Literal["auto", "amx", "avx512bf16", "avx512", "avx2", "portable", "torch"] = "auto"
    """What computes. On a CPU: kernels compiled for this machine's best instructions (`auto`), for those named, or torch alone.
    Nodes that hand KV to each other must compute alike, so on a fleet of unequal processors name what all of them have. On a
    GPU: Triton's kernels (`auto`), or torch alone."""
    max_graph_batch: Annotated[int, Field(ge=0)] | None = None
    """On a GPU, decode steps of up to this many requests are replayed from CUDA graphs; unset: up to `max_batch`; 0: none."""
