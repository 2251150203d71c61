from twostep.proto import node_pb2 as _node_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN_LEG: _ClassVar[Outcome]
    ATTACHED: _ClassVar[Outcome]
    FINISHED: _ClassVar[Outcome]
    MISMATCH: _ClassVar[Outcome]
    ENDED: _ClassVar[Outcome]

class AbortState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ABORT_UNKNOWN: _ClassVar[AbortState]
    ABORT_DRAINED: _ClassVar[AbortState]
    ABORT_NOT_DRAINED: _ClassVar[AbortState]
UNKNOWN_LEG: Outcome
ATTACHED: Outcome
FINISHED: Outcome
MISMATCH: Outcome
ENDED: Outcome
ABORT_UNKNOWN: AbortState
ABORT_DRAINED: AbortState
ABORT_NOT_DRAINED: AbortState

class HelloRequest(_message.Message):
    __slots__ = ("node", "fingerprint", "geometry", "handoff_address", "transport")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    GEOMETRY_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    node: _node_pb2.NodeRef
    fingerprint: _containers.ScalarMap[str, str]
    geometry: _node_pb2.Geometry
    handoff_address: str
    transport: str
    def __init__(self, node: _Optional[_Union[_node_pb2.NodeRef, _Mapping]] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., geometry: _Optional[_Union[_node_pb2.Geometry, _Mapping]] = ..., handoff_address: _Optional[str] = ..., transport: _Optional[str] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("node", "fingerprint", "geometry", "transport", "transport_metadata", "landing_address", "landing_bytes", "landing_kind", "landing_device", "registration", "probe_offset", "probe_bytes", "generation")
    class FingerprintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    GEOMETRY_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_METADATA_FIELD_NUMBER: _ClassVar[int]
    LANDING_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LANDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    LANDING_KIND_FIELD_NUMBER: _ClassVar[int]
    LANDING_DEVICE_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    PROBE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PROBE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    node: _node_pb2.NodeRef
    fingerprint: _containers.ScalarMap[str, str]
    geometry: _node_pb2.Geometry
    transport: str
    transport_metadata: bytes
    landing_address: int
    landing_bytes: int
    landing_kind: str
    landing_device: int
    registration: int
    probe_offset: int
    probe_bytes: int
    generation: int
    def __init__(self, node: _Optional[_Union[_node_pb2.NodeRef, _Mapping]] = ..., fingerprint: _Optional[_Mapping[str, str]] = ..., geometry: _Optional[_Union[_node_pb2.Geometry, _Mapping]] = ..., transport: _Optional[str] = ..., transport_metadata: _Optional[bytes] = ..., landing_address: _Optional[int] = ..., landing_bytes: _Optional[int] = ..., landing_kind: _Optional[str] = ..., landing_device: _Optional[int] = ..., registration: _Optional[int] = ..., probe_offset: _Optional[int] = ..., probe_bytes: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("source", "registration", "probe_digest")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    PROBE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    source: _node_pb2.NodeRef
    registration: int
    probe_digest: bytes
    def __init__(self, source: _Optional[_Union[_node_pb2.NodeRef, _Mapping]] = ..., registration: _Optional[int] = ..., probe_digest: _Optional[bytes] = ...) -> None: ...

class ProbeReply(_message.Message):
    __slots__ = ("arrived",)
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    arrived: bool
    def __init__(self, arrived: _Optional[bool] = ...) -> None: ...

class LegProgress(_message.Message):
    __slots__ = ("leg", "phase", "queue_position", "bytes_sent")
    LEG_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    leg: _node_pb2.Leg
    phase: str
    queue_position: int
    bytes_sent: int
    def __init__(self, leg: _Optional[_Union[_node_pb2.Leg, _Mapping]] = ..., phase: _Optional[str] = ..., queue_position: _Optional[int] = ..., bytes_sent: _Optional[int] = ...) -> None: ...

class ProgressRequest(_message.Message):
    __slots__ = ("source", "engine_step", "legs")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_STEP_FIELD_NUMBER: _ClassVar[int]
    LEGS_FIELD_NUMBER: _ClassVar[int]
    source: _node_pb2.NodeRef
    engine_step: int
    legs: _containers.RepeatedCompositeFieldContainer[LegProgress]
    def __init__(self, source: _Optional[_Union[_node_pb2.NodeRef, _Mapping]] = ..., engine_step: _Optional[int] = ..., legs: _Optional[_Iterable[_Union[LegProgress, _Mapping]]] = ...) -> None: ...

class ProgressReply(_message.Message):
    __slots__ = ("unknown",)
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    unknown: _containers.RepeatedCompositeFieldContainer[_node_pb2.Leg]
    def __init__(self, unknown: _Optional[_Iterable[_Union[_node_pb2.Leg, _Mapping]]] = ...) -> None: ...

class DigestBlock(_message.Message):
    __slots__ = ("first_layer", "num_layers", "first_block", "num_blocks", "digests")
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    first_layer: int
    num_layers: int
    first_block: int
    num_blocks: int
    digests: bytes
    def __init__(self, first_layer: _Optional[int] = ..., num_layers: _Optional[int] = ..., first_block: _Optional[int] = ..., num_blocks: _Optional[int] = ..., digests: _Optional[bytes] = ...) -> None: ...

class LandedRequest(_message.Message):
    __slots__ = ("leg", "generation", "digests")
    LEG_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    leg: _node_pb2.Leg
    generation: int
    digests: DigestBlock
    def __init__(self, leg: _Optional[_Union[_node_pb2.Leg, _Mapping]] = ..., generation: _Optional[int] = ..., digests: _Optional[_Union[DigestBlock, _Mapping]] = ...) -> None: ...

class LandedReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreditRequest(_message.Message):
    __slots__ = ("leg", "generation", "first_layer", "num_layers", "end_block")
    LEG_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    END_BLOCK_FIELD_NUMBER: _ClassVar[int]
    leg: _node_pb2.Leg
    generation: int
    first_layer: int
    num_layers: int
    end_block: int
    def __init__(self, leg: _Optional[_Union[_node_pb2.Leg, _Mapping]] = ..., generation: _Optional[int] = ..., first_layer: _Optional[int] = ..., num_layers: _Optional[int] = ..., end_block: _Optional[int] = ...) -> None: ...

class CreditReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DoneRequest(_message.Message):
    __slots__ = ("leg", "generation", "digests", "first_token", "finished", "since_computed_s")
    LEG_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    SINCE_COMPUTED_S_FIELD_NUMBER: _ClassVar[int]
    leg: _node_pb2.Leg
    generation: int
    digests: DigestBlock
    first_token: int
    finished: bool
    since_computed_s: float
    def __init__(self, leg: _Optional[_Union[_node_pb2.Leg, _Mapping]] = ..., generation: _Optional[int] = ..., digests: _Optional[_Union[DigestBlock, _Mapping]] = ..., first_token: _Optional[int] = ..., finished: _Optional[bool] = ..., since_computed_s: _Optional[float] = ...) -> None: ...

class DoneReply(_message.Message):
    __slots__ = ("outcome", "reason", "mismatched_blocks")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MISMATCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    reason: str
    mismatched_blocks: int
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., reason: _Optional[str] = ..., mismatched_blocks: _Optional[int] = ...) -> None: ...

class FailedRequest(_message.Message):
    __slots__ = ("leg", "generation", "error", "drained")
    LEG_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    leg: _node_pb2.Leg
    generation: int
    error: _node_pb2.Error
    drained: bool
    def __init__(self, leg: _Optional[_Union[_node_pb2.Leg, _Mapping]] = ..., generation: _Optional[int] = ..., error: _Optional[_Union[_node_pb2.Error, _Mapping]] = ..., drained: _Optional[bool] = ...) -> None: ...

class FailedReply(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("leg", "reason", "outcome", "generation")
    LEG_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    leg: _node_pb2.Leg
    reason: str
    outcome: Outcome
    generation: int
    def __init__(self, leg: _Optional[_Union[_node_pb2.Leg, _Mapping]] = ..., reason: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., generation: _Optional[int] = ...) -> None: ...

class AbortReply(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: AbortState
    def __init__(self, state: _Optional[_Union[AbortState, str]] = ...) -> None: ...
