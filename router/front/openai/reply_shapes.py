"""What replies look like, as types: what /openapi.json tells clients of them. The writers of replies do not need these."""

from typing import Literal

from pydantic import BaseModel

from twostep.router.bill import Bill

FinishReason = Literal["stop", "length"]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(BaseModel):
    """`code` is stable; `param` is the field at fault, where there is one."""

    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class UsageReply(BaseModel):
    """Tokens. `cached_tokens` is the part of the prompt that nobody had to compute."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: None
    finish_reason: FinishReason


class ChatReply(BaseModel):
    """`bill` is there when it was asked for."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply
    bill: Bill | None = None


class ChatDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: None
    finish_reason: FinishReason | None


class ChatChunk(BaseModel):
    """One event of a streamed chat reply. The one with `usage` has no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageReply | None = None
    bill: Bill | None = None


class CompletionChoice(BaseModel):
    """Of a whole reply, or of one event: there `finish_reason` is null but in the last. `bill` is there when asked for."""

    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason | None
    bill: Bill | None = None


class CompletionChunk(BaseModel):
    """One event of a streamed completion. The one with `usage` has no choices."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageReply | None = None


class CompletionReply(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageReply


class TokenizeReply(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: None


class DetokenizeReply(BaseModel):
    prompt: str


class ModelCard(BaseModel):
    """`max_model_len` is null while no decode node is ready."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int | None


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class HealthReply(BaseModel):
    status: Literal["ok"]


class NodeVersion(BaseModel):
    """`kernels` tells what computes there: compiled kernels, or torch, and why it stands in for them where it does."""

    node: str
    role: str
    version: str
    kernels: str


class VersionReply(BaseModel):
    version: str
    nodes: list[NodeVersion]


class PairReport(BaseModel):
    prefill: str
    decode: str
    path: str
    bytes_per_s: float


class NodeReport(BaseModel):
    role: Literal["prefill", "decode"]
    address: str
    node: str | None
    ready: bool
    reason: str
    requests: int
    peers: dict[str, str]


class DiscoveryReport(BaseModel):
    source: str
    stale_s: float
    trouble: str


class ReadyReply(BaseModel):
    """`workers` says of each whether it is ready, where there are several; the rest is what the one tells that is worst off."""

    ready: bool
    proven_pairs: int
    pairs: list[PairReport]
    discovery: DiscoveryReport
    nodes: list[NodeReport]
    workers: dict[str, bool] | None = None


class PlacedNode(BaseModel):
    """`load` is what the node had to do when it was chosen: prompt tokens of a prefill node, requests of a decode node."""

    node: str
    load: int


class AttemptReport(BaseModel):
    """`why` tells why these nodes; `tokens_before` is how much of the answer earlier attempts had brought."""

    prefill: PlacedNode | None
    decode: PlacedNode
    why: str
    tokens_before: int
    error: str


class ExplanationReply(BaseModel):
    """One of the latest requests: `outcome` is how it ended, or `running`; `bill` is null until it ended well."""

    request: str
    client_id: str
    arrived_at: float
    prompt_tokens: int
    outcome: str
    attempts: list[AttemptReport]
    bill: Bill | None
