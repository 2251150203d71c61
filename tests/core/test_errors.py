import grpc
import pytest

from twostep.core import errors
from twostep.core.errors import ServingError, error_classes

RETRIED = True
FINAL = False
TABLE = {
    errors.ServingError: ("internal_error", 500, "INTERNAL", FINAL),
    errors.InvalidRequest: ("invalid_request", 400, "INVALID_ARGUMENT", FINAL),
    errors.PromptTooLong: ("prompt_too_long", 400, "INVALID_ARGUMENT", FINAL),
    errors.Unsupported: ("unsupported", 400, "INVALID_ARGUMENT", FINAL),
    errors.UnknownRequest: ("request_not_found", 404, "NOT_FOUND", FINAL),
    errors.UnknownModel: ("model_not_found", 404, "NOT_FOUND", FINAL),
    errors.TooLarge: ("request_too_large", 413, "INVALID_ARGUMENT", FINAL),
    errors.HeadersTooLarge: ("headers_too_large", 431, "INVALID_ARGUMENT", FINAL),
    errors.RequestTimeout: ("request_timeout", 408, "DEADLINE_EXCEEDED", FINAL),
    errors.Conflict: ("conflict", 409, "ALREADY_EXISTS", FINAL),
    errors.Unauthorized: ("unauthorized", 401, "UNAUTHENTICATED", FINAL),
    errors.Overloaded: ("overloaded", 503, "RESOURCE_EXHAUSTED", RETRIED),
    errors.QueueFull: ("queue_full", 429, "RESOURCE_EXHAUSTED", RETRIED),
    errors.NoReadyNode: ("no_ready_node", 503, "UNAVAILABLE", FINAL),
    errors.NodeUnavailable: ("node_unavailable", 503, "UNAVAILABLE", RETRIED),
    errors.NodeUnreachable: ("node_unreachable", 503, "UNAVAILABLE", RETRIED),
    errors.NodeReplaced: ("node_replaced", 503, "UNAVAILABLE", RETRIED),
    errors.NodeDraining: ("node_draining", 503, "UNAVAILABLE", RETRIED),
    errors.TransferFailed: ("transfer_failed", 503, "ABORTED", RETRIED),
    errors.TransferTimeout: ("transfer_timeout", 503, "ABORTED", RETRIED),
    errors.ChecksumMismatch: ("checksum_mismatch", 503, "DATA_LOSS", RETRIED),
    errors.TicketExpired: ("ticket_expired", 503, "ABORTED", RETRIED),
    errors.UnprovenPair: ("unproven_pair", 503, "ABORTED", RETRIED),
    errors.StaleLeg: ("stale_leg", 503, "FAILED_PRECONDITION", RETRIED),
    errors.FingerprintMismatch: ("fingerprint_mismatch", 500, "FAILED_PRECONDITION", RETRIED),
    errors.Cancelled: ("cancelled", 499, "CANCELLED", FINAL),
    errors.SlowConsumer: ("slow_consumer", 499, "RESOURCE_EXHAUSTED", FINAL),
    errors.DeadlineExceeded: ("deadline_exceeded", 504, "DEADLINE_EXCEEDED", FINAL),
    errors.RequestFault: ("request_fault", 500, "INTERNAL", FINAL),
    errors.EngineFault: ("engine_fault", 500, "INTERNAL", RETRIED),
}


def test_every_error_is_in_the_table_with_its_code_statuses_and_retry() -> None:
    built = {
        known: (known.code, known.http_status, known.grpc_status, known.retry_elsewhere) for known in error_classes().values()
    }
    assert built == TABLE


def test_every_code_names_one_class() -> None:
    assert error_classes() == {code: known for known, (code, *_) in TABLE.items()}


@pytest.mark.parametrize("known", TABLE)
def test_every_grpc_status_exists(known: type[ServingError]) -> None:
    assert known.grpc_status in grpc.StatusCode.__members__


@pytest.mark.parametrize("known", [known for known in TABLE if 400 <= known.http_status < 500])
def test_a_client_error_is_final_unless_another_node_may_have_room(known: type[ServingError]) -> None:
    assert known.retry_elsewhere is (known is errors.QueueFull)


def test_an_error_carries_the_field_and_the_wait() -> None:
    error = errors.QueueFull("64 requests wait", param="messages", retry_after_s=1.5)
    assert (str(error), error.message, error.param, error.retry_after_s) == ("64 requests wait",) * 2 + ("messages", 1.5)
