"""Every way in which a request can fail, with what HTTP, gRPC and the router's retry make of it."""

from typing import ClassVar


class ServingError(Exception):
    """Base of all errors that a client may see. `code` is stable and machine-readable."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    retry_elsewhere: ClassVar[bool] = False
    """Whether the router may place the request once more, on another node."""

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(ServingError):
    code, http_status, grpc_status = "invalid_request", 400, "INVALID_ARGUMENT"


class PromptTooLong(InvalidRequest):
    code = "prompt_too_long"


class Unsupported(InvalidRequest):
    code = "unsupported"


class UnknownModel(InvalidRequest):
    code, http_status, grpc_status = "model_not_found", 404, "NOT_FOUND"


class UnknownRequest(InvalidRequest):
    """Nobody remembers a request of that name."""

    code, http_status, grpc_status = "request_not_found", 404, "NOT_FOUND"


class TooLarge(InvalidRequest):
    code, http_status = "request_too_large", 413


class HeadersTooLarge(TooLarge):
    code, http_status = "headers_too_large", 431


class RequestTimeout(InvalidRequest):
    """The client has not sent its whole request in time."""

    code, http_status, grpc_status = "request_timeout", 408, "DEADLINE_EXCEEDED"


class Conflict(ServingError):
    code, http_status, grpc_status = "conflict", 409, "ALREADY_EXISTS"


class Unauthorized(ServingError):
    code, http_status, grpc_status = "unauthorized", 401, "UNAUTHENTICATED"


class Overloaded(ServingError):
    code, http_status, grpc_status, retry_elsewhere = "overloaded", 503, "RESOURCE_EXHAUSTED", True


class QueueFull(Overloaded):
    code, http_status = "queue_full", 429


class NoReadyNode(Overloaded):
    code, grpc_status, retry_elsewhere = "no_ready_node", "UNAVAILABLE", False


class NodeUnavailable(ServingError):
    code, http_status, grpc_status, retry_elsewhere = "node_unavailable", 503, "UNAVAILABLE", True


class NodeUnreachable(NodeUnavailable):
    """The node does not answer itself: it may be gone. Never passed on from one node to another."""

    code = "node_unreachable"


class NodeReplaced(NodeUnavailable):
    """The node that was meant is gone: at its address another life of it has begun."""

    code = "node_replaced"


class NodeDraining(NodeUnavailable):
    """The node takes nothing new, for it stops or is out of service; or it stops and has had no time to finish."""

    code = "node_draining"


class TransferFailed(ServingError):
    code, http_status, grpc_status, retry_elsewhere = "transfer_failed", 503, "ABORTED", True


class TransferTimeout(TransferFailed):
    code = "transfer_timeout"


class ChecksumMismatch(TransferFailed):
    code, grpc_status = "checksum_mismatch", "DATA_LOSS"


class UnprovenPair(TransferFailed):
    """Bytes do not move between these two nodes, or not any more: they have to shake hands first."""

    code = "unproven_pair"


class TicketExpired(TransferFailed):
    code = "ticket_expired"


class StaleLeg(TransferFailed):
    """A message names an attempt, incarnation or generation that is no longer current."""

    code, grpc_status = "stale_leg", "FAILED_PRECONDITION"


class FingerprintMismatch(ServingError):
    code, grpc_status, retry_elsewhere = "fingerprint_mismatch", "FAILED_PRECONDITION", True


class Cancelled(ServingError):
    code, http_status, grpc_status = "cancelled", 499, "CANCELLED"


class SlowConsumer(ServingError):
    """Nobody has taken the request's tokens for too long."""

    code, http_status, grpc_status = "slow_consumer", 499, "RESOURCE_EXHAUSTED"


class DeadlineExceeded(ServingError):
    code, http_status, grpc_status = "deadline_exceeded", 504, "DEADLINE_EXCEEDED"


class RequestFault(ServingError):
    """One request failed inside the engine (NaN, out of memory); the node lives on."""

    code = "request_fault"


class EngineFault(ServingError):
    """The engine itself failed; the node turns unready and exits."""

    code, retry_elsewhere = "engine_fault", True


class ConfigError(Exception):
    """A program cannot start as it was told. The message is one line that says what to do; exit code 2."""

    exit_code: ClassVar[int] = 2


def error_classes() -> dict[str, type[ServingError]]:
    """Return every error class by its `code`, for edges that rebuild an error from the wire."""
    classes: list[type[ServingError]] = [ServingError]
    for known in classes:
        classes.extend(known.__subclasses__())
    return {known.code: known for known in classes}
