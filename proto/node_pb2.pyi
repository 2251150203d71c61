from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeRef(_message.Message):
    __slots__ = ("id", "incarnation")
    ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    id: str
    incarnation: int
    def __init__(self, id: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Geometry(_message.Message):
    __slots__ = ("block_tokens", "max_model_tokens", "layer_group", "first_head", "end_head", "tp_size")
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAYER_GROUP_FIELD_NUMBER: _ClassVar[int]
    FIRST_HEAD_FIELD_NUMBER: _ClassVar[int]
    END_HEAD_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    block_tokens: int
    max_model_tokens: int
    layer_group: int
    first_head: int
    end_head: int
    tp_size: int
    def __init__(self, block_tokens: _Optional[int] = ..., max_model_tokens: _Optional[int] = ..., layer_group: _Optional[int] = ..., first_head: _Optional[int] = ..., end_head: _Optional[int] = ..., tp_size: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeDescription(_message.Message):
    __slots__ = ("node", "role", "ready", "not_ready_reason", "model", "fingerprint", "geometry", "transport", "handoff_address", "num_blocks", "max_prompt_tokens", "version", "kernels")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_REASON_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    GEOMETRY_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    node: NodeRef
    role: str
    ready: bool
    not_ready_reason: str
    model: str
    fingerprint: _containers.ScalarMap[str, str]
    geometry: Geometry
    transport: str
    handoff_address: str
    num_blocks: int
    max_prompt_tokens: int
    version: str
    kernels: str
    def __init__(self, node: _Optional[_Union[NodeRef, _Mapping]] = ..., role: _Optional[str] = ..., ready: _Optional[bool] = ..., not_ready_reason: _Optional[str] = ..., model: _Optional[str] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., geometry: _Optional[_Union[Geometry, _Mapping]] = ..., transport: _Optional[str] = ..., handoff_address: _Optional[str] = ..., num_blocks: _Optional[int] = ..., max_prompt_tokens: _Optional[int] = ..., version: _Optional[str] = ..., kernels: _Optional[str] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("node", "handoff_address")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node: NodeRef
    handoff_address: str
    def __init__(self, node: _Optional[_Union[NodeRef, _Mapping]] = ..., handoff_address: _Optional[str] = ...) -> None: ...

class PeersRequest(_message.Message):
    __slots__ = ("router", "peers", "expires_s")
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    router: str
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    expires_s: float
    def __init__(self, router: _Optional[str] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., expires_s: _Optional[float] = ...) -> None: ...

class PeerState(_message.Message):
    __slots__ = ("node", "state", "reason", "path", "bytes_per_s")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[PeerState.State]
        HANDSHAKING: _ClassVar[PeerState.State]
        PROVEN: _ClassVar[PeerState.State]
        FAILED: _ClassVar[PeerState.State]
        SUSPENDED: _ClassVar[PeerState.State]
    UNKNOWN: PeerState.State
    HANDSHAKING: PeerState.State
    PROVEN: PeerState.State
    FAILED: PeerState.State
    SUSPENDED: PeerState.State
    NODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    node: NodeRef
    state: PeerState.State
    reason: str
    path: str
    bytes_per_s: float
    def __init__(self, node: _Optional[_Union[NodeRef, _Mapping]] = ..., state: _Optional[_Union[PeerState.State, str]] = ..., reason: _Optional[str] = ..., path: _Optional[str] = ..., bytes_per_s: _Optional[float] = ...) -> None: ...

class PeersReply(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[PeerState]
    def __init__(self, peers: _Optional[_Iterable[_Union[PeerState, _Mapping]]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("router", "sequence", "lease_s", "live", "held", "blocks")
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    router: str
    sequence: int
    lease_s: float
    live: _containers.RepeatedScalarFieldContainer[str]
    held: _containers.RepeatedScalarFieldContainer[str]
    blocks: BlockCursor
    def __init__(self, router: _Optional[str] = ..., sequence: _Optional[int] = ..., lease_s: _Optional[float] = ..., live: _Optional[_Iterable[str]] = ..., held: _Optional[_Iterable[str]] = ..., blocks: _Optional[_Union[BlockCursor, _Mapping]] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("unknown", "status", "blocks")
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    unknown: _containers.RepeatedScalarFieldContainer[str]
    status: NodeStatus
    blocks: BlockNews
    def __init__(self, unknown: _Optional[_Iterable[str]] = ..., status: _Optional[_Union[NodeStatus, _Mapping]] = ..., blocks: _Optional[_Union[BlockNews, _Mapping]] = ...) -> None: ...

class BlockCursor(_message.Message):
    __slots__ = ("incarnation", "next")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    next: int
    def __init__(self, incarnation: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...

class BlockNews(_message.Message):
    __slots__ = ("first", "next", "stored", "evicted", "snapshot")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    first: int
    next: int
    stored: bytes
    evicted: bytes
    snapshot: bool
    def __init__(self, first: _Optional[int] = ..., next: _Optional[int] = ..., stored: _Optional[bytes] = ..., evicted: _Optional[bytes] = ..., snapshot: _Optional[bool] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request", "reason")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request: str
    reason: str
    def __init__(self, request: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: _Optional[bool] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CordonRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node", "ready", "not_ready_reason", "step", "num_running", "num_waiting", "queued_tokens", "free_blocks", "cached_blocks", "referenced_blocks", "total_blocks", "peers", "waiting_tokens", "block_hold_s", "prefill_rates", "step_pace")
    NODE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_REASON_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HOLD_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_RATES_FIELD_NUMBER: _ClassVar[int]
    STEP_PACE_FIELD_NUMBER: _ClassVar[int]
    node: NodeRef
    ready: bool
    not_ready_reason: str
    step: int
    num_running: int
    num_waiting: int
    queued_tokens: int
    free_blocks: int
    cached_blocks: int
    referenced_blocks: int
    total_blocks: int
    peers: _containers.RepeatedCompositeFieldContainer[PeerState]
    waiting_tokens: int
    block_hold_s: float
    prefill_rates: _containers.RepeatedCompositeFieldContainer[RatePoint]
    step_pace: StepPace
    def __init__(self, node: _Optional[_Union[NodeRef, _Mapping]] = ..., ready: _Optional[bool] = ..., not_ready_reason: _Optional[str] = ..., step: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., free_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., referenced_blocks: _Optional[int] = ..., total_blocks: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[PeerState, _Mapping]]] = ..., waiting_tokens: _Optional[int] = ..., block_hold_s: _Optional[float] = ..., prefill_rates: _Optional[_Iterable[_Union[RatePoint, _Mapping]]] = ..., step_pace: _Optional[_Union[StepPace, _Mapping]] = ...) -> None: ...

class RatePoint(_message.Message):
    __slots__ = ("position", "token_s")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    position: int
    token_s: float
    def __init__(self, position: _Optional[int] = ..., token_s: _Optional[float] = ...) -> None: ...

class StepPace(_message.Message):
    __slots__ = ("base_s", "sequence_s")
    BASE_S_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_S_FIELD_NUMBER: _ClassVar[int]
    base_s: float
    sequence_s: float
    def __init__(self, base_s: _Optional[float] = ..., sequence_s: _Optional[float] = ...) -> None: ...

class LedgerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LedgerEntry(_message.Message):
    __slots__ = ("owner", "phase", "age_s", "blocks", "landing_offset", "landing_bytes", "generation", "attempt", "source", "destination", "cooldown_left_s", "writes_in_flight")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LANDING_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LANDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    COOLDOWN_LEFT_S_FIELD_NUMBER: _ClassVar[int]
    WRITES_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    owner: str
    phase: str
    age_s: float
    blocks: _containers.RepeatedScalarFieldContainer[int]
    landing_offset: int
    landing_bytes: int
    generation: int
    attempt: int
    source: str
    destination: str
    cooldown_left_s: float
    writes_in_flight: int
    def __init__(self, owner: _Optional[str] = ..., phase: _Optional[str] = ..., age_s: _Optional[float] = ..., blocks: _Optional[_Iterable[int]] = ..., landing_offset: _Optional[int] = ..., landing_bytes: _Optional[int] = ..., generation: _Optional[int] = ..., attempt: _Optional[int] = ..., source: _Optional[str] = ..., destination: _Optional[str] = ..., cooldown_left_s: _Optional[float] = ..., writes_in_flight: _Optional[int] = ...) -> None: ...

class LedgerReply(_message.Message):
    __slots__ = ("node", "total_blocks", "free_blocks", "cached_blocks", "referenced_blocks", "orphaned_blocks", "landing_bytes", "landing_free_bytes", "entries")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ORPHANED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LANDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    LANDING_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    node: NodeRef
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    referenced_blocks: int
    orphaned_blocks: int
    landing_bytes: int
    landing_free_bytes: int
    entries: _containers.RepeatedCompositeFieldContainer[LedgerEntry]
    def __init__(self, node: _Optional[_Union[NodeRef, _Mapping]] = ..., total_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., referenced_blocks: _Optional[int] = ..., orphaned_blocks: _Optional[int] = ..., landing_bytes: _Optional[int] = ..., landing_free_bytes: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[LedgerEntry, _Mapping]]] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("within_s",)
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    within_s: float
    def __init__(self, within_s: _Optional[float] = ...) -> None: ...

class TracedStep(_message.Message):
    __slots__ = ("number", "age_s", "duration_s", "gap_s", "requests", "decode_tokens", "prompt_tokens", "hit_tokens", "preempted", "token_budget")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    GAP_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    number: int
    age_s: float
    duration_s: float
    gap_s: float
    requests: int
    decode_tokens: int
    prompt_tokens: int
    hit_tokens: int
    preempted: int
    token_budget: int
    def __init__(self, number: _Optional[int] = ..., age_s: _Optional[float] = ..., duration_s: _Optional[float] = ..., gap_s: _Optional[float] = ..., requests: _Optional[int] = ..., decode_tokens: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., preempted: _Optional[int] = ..., token_budget: _Optional[int] = ...) -> None: ...

class TracedSpan(_message.Message):
    __slots__ = ("request", "attempt", "phase", "age_s", "duration_s")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    phase: str
    age_s: float
    duration_s: float
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., phase: _Optional[str] = ..., age_s: _Optional[float] = ..., duration_s: _Optional[float] = ...) -> None: ...

class TraceReply(_message.Message):
    __slots__ = ("node", "steps", "spans")
    NODE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    node: NodeRef
    steps: _containers.RepeatedCompositeFieldContainer[TracedStep]
    spans: _containers.RepeatedCompositeFieldContainer[TracedSpan]
    def __init__(self, node: _Optional[_Union[NodeRef, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[TracedStep, _Mapping]]] = ..., spans: _Optional[_Iterable[_Union[TracedSpan, _Mapping]]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("seed", "temperature", "top_k", "top_p", "min_p")
    SEED_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    def __init__(self, seed: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ...) -> None: ...

class StopRules(_message.Message):
    __slots__ = ("max_tokens", "eos_ids", "stop_ids", "ignore_eos")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    def __init__(self, max_tokens: _Optional[int] = ..., eos_ids: _Optional[_Iterable[int]] = ..., stop_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ...) -> None: ...

class ServiceLevel(_message.Message):
    __slots__ = ("priority", "tenant", "ttft_s", "tpot_s")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    TPOT_S_FIELD_NUMBER: _ClassVar[int]
    priority: int
    tenant: str
    ttft_s: float
    tpot_s: float
    def __init__(self, priority: _Optional[int] = ..., tenant: _Optional[str] = ..., ttft_s: _Optional[float] = ..., tpot_s: _Optional[float] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("id", "prompt", "output_tokens", "sampling", "stop", "cache_salt", "level")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    id: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    output_tokens: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    stop: StopRules
    cache_salt: bytes
    level: ServiceLevel
    def __init__(self, id: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., output_tokens: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., stop: _Optional[_Union[StopRules, _Mapping]] = ..., cache_salt: _Optional[bytes] = ..., level: _Optional[_Union[ServiceLevel, _Mapping]] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("router", "request", "attempt", "prefill_node", "fingerprint", "geometry", "remaining_s", "age_s")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NODE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    GEOMETRY_FIELD_NUMBER: _ClassVar[int]
    REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    router: str
    request: GenerateRequest
    attempt: int
    prefill_node: NodeRef
    fingerprint: _containers.ScalarMap[str, str]
    geometry: Geometry
    remaining_s: float
    age_s: float
    def __init__(self, router: _Optional[str] = ..., request: _Optional[_Union[GenerateRequest, _Mapping]] = ..., attempt: _Optional[int] = ..., prefill_node: _Optional[_Union[NodeRef, _Mapping]] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., geometry: _Optional[_Union[Geometry, _Mapping]] = ..., remaining_s: _Optional[float] = ..., age_s: _Optional[float] = ...) -> None: ...

class TokenRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class LandingExtent(_message.Message):
    __slots__ = ("offset", "num_bytes", "num_slots", "generation")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    offset: int
    num_bytes: int
    num_slots: int
    generation: int
    def __init__(self, offset: _Optional[int] = ..., num_bytes: _Optional[int] = ..., num_slots: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class Leg(_message.Message):
    __slots__ = ("request", "attempt", "source", "destination", "source_rank", "destination_rank")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_RANK_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_RANK_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    source: NodeRef
    destination: NodeRef
    source_rank: int
    destination_rank: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., source: _Optional[_Union[NodeRef, _Mapping]] = ..., destination: _Optional[_Union[NodeRef, _Mapping]] = ..., source_rank: _Optional[int] = ..., destination_rank: _Optional[int] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("leg", "missing", "token_digest", "extent", "registration", "first_head", "end_head", "cache_salt", "remaining_s", "num_choices")
    LEG_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    EXTENT_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_HEAD_FIELD_NUMBER: _ClassVar[int]
    END_HEAD_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    NUM_CHOICES_FIELD_NUMBER: _ClassVar[int]
    leg: Leg
    missing: TokenRange
    token_digest: bytes
    extent: LandingExtent
    registration: int
    first_head: int
    end_head: int
    cache_salt: bytes
    remaining_s: float
    num_choices: int
    def __init__(self, leg: _Optional[_Union[Leg, _Mapping]] = ..., missing: _Optional[_Union[TokenRange, _Mapping]] = ..., token_digest: _Optional[bytes] = ..., extent: _Optional[_Union[LandingExtent, _Mapping]] = ..., registration: _Optional[int] = ..., first_head: _Optional[int] = ..., end_head: _Optional[int] = ..., cache_salt: _Optional[bytes] = ..., remaining_s: _Optional[float] = ..., num_choices: _Optional[int] = ...) -> None: ...

class ReserveEvent(_message.Message):
    __slots__ = ("queued", "granted")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    queued: Queued
    granted: Granted
    def __init__(self, queued: _Optional[_Union[Queued, _Mapping]] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ...) -> None: ...

class Queued(_message.Message):
    __slots__ = ("position", "estimate_s")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_S_FIELD_NUMBER: _ClassVar[int]
    position: int
    estimate_s: float
    def __init__(self, position: _Optional[int] = ..., estimate_s: _Optional[float] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("ticket", "cached_tokens")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    cached_tokens: int
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class PrefillRequest(_message.Message):
    __slots__ = ("router", "request", "ticket", "fingerprint", "age_s")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    router: str
    request: GenerateRequest
    ticket: Ticket
    fingerprint: _containers.ScalarMap[str, str]
    age_s: float
    def __init__(self, router: _Optional[str] = ..., request: _Optional[_Union[GenerateRequest, _Mapping]] = ..., ticket: _Optional[_Union[Ticket, _Mapping]] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., age_s: _Optional[float] = ...) -> None: ...

class PrefillReply(_message.Message):
    __slots__ = ("bill", "first_token")
    BILL_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    bill: PrefillBill
    first_token: int
    def __init__(self, bill: _Optional[_Union[PrefillBill, _Mapping]] = ..., first_token: _Optional[int] = ...) -> None: ...

class PrefillBill(_message.Message):
    __slots__ = ("queue_s", "compute_s", "transfer_s", "exposed_s", "cached_tokens", "computed_tokens", "bytes_sent", "handover_s")
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_S_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_S_FIELD_NUMBER: _ClassVar[int]
    queue_s: float
    compute_s: float
    transfer_s: float
    exposed_s: float
    cached_tokens: int
    computed_tokens: int
    bytes_sent: int
    handover_s: float
    def __init__(self, queue_s: _Optional[float] = ..., compute_s: _Optional[float] = ..., transfer_s: _Optional[float] = ..., exposed_s: _Optional[float] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., handover_s: _Optional[float] = ...) -> None: ...

class DecodeBill(_message.Message):
    __slots__ = ("queue_s", "attach_s", "first_step_s", "decode_s", "num_steps", "cached_tokens", "computed_prompt_tokens", "bytes_landed")
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    ATTACH_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_LANDED_FIELD_NUMBER: _ClassVar[int]
    queue_s: float
    attach_s: float
    first_step_s: float
    decode_s: float
    num_steps: int
    cached_tokens: int
    computed_prompt_tokens: int
    bytes_landed: int
    def __init__(self, queue_s: _Optional[float] = ..., attach_s: _Optional[float] = ..., first_step_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., num_steps: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_prompt_tokens: _Optional[int] = ..., bytes_landed: _Optional[int] = ...) -> None: ...

class TokensRequest(_message.Message):
    __slots__ = ("router",)
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    router: str
    def __init__(self, router: _Optional[str] = ...) -> None: ...

class TokenBatch(_message.Message):
    __slots__ = ("tokens", "ended")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    ended: _containers.RepeatedCompositeFieldContainer[Ended]
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., ended: _Optional[_Iterable[_Union[Ended, _Mapping]]] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("request", "attempt", "choice", "index", "token")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    choice: int
    index: int
    token: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., choice: _Optional[int] = ..., index: _Optional[int] = ..., token: _Optional[int] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("request", "attempt", "finish_reason", "error", "bill", "num_tokens")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BILL_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request: str
    attempt: int
    finish_reason: str
    error: Error
    bill: DecodeBill
    num_tokens: int
    def __init__(self, request: _Optional[str] = ..., attempt: _Optional[int] = ..., finish_reason: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., bill: _Optional[_Union[DecodeBill, _Mapping]] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "param", "retry_elsewhere", "retry_after_s")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    RETRY_ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    param: str
    retry_elsewhere: bool
    retry_after_s: float
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., retry_elsewhere: _Optional[bool] = ..., retry_after_s: _Optional[float] = ...) -> None: ...
