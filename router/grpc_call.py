"""What a gRPC call brings beside its message: an id, what the caller says of itself, and how long it will wait."""

import re
from collections.abc import Mapping

from twostep.core.errors import InvalidRequest
from twostep.core.spans import TRACE_KEY, TraceContext
from twostep.proto.rpc import Context
from twostep.router.request_record import CLIENT_ID, RequestIds, new_request_ids

ID_KEY = "x-request-id"
TIMING_KEY = "server-timing"
TENANT_KEY = "twostep-tenant"
PRIORITY_KEY = "twostep-priority"

PRIORITY = re.compile(r"-?[0-9]{1,9}")


def read_ids(context: Context) -> RequestIds:
    return new_request_ids(_metadata(context).get(ID_KEY))


def read_caller(context: Context) -> Mapping[str, str]:
    """Return tenant, priority and trace, as far as they are given. Raises InvalidRequest.

    A malformed trace is left out: that is what its specification asks for.
    """
    given = _metadata(context)
    caller: dict[str, str] = {}
    if tenant := given.get(TENANT_KEY):
        caller["tenant"] = _matching(CLIENT_ID, TENANT_KEY, tenant, "up to 128 letters, digits and ._:/+=@-")
    if priority := given.get(PRIORITY_KEY):
        caller["priority"] = _matching(PRIORITY, PRIORITY_KEY, priority, "a whole number")
    if trace := TraceContext.parse(given.get(TRACE_KEY, "")):
        caller["traceparent"] = trace.header()
    return caller


def _metadata(context: Context) -> Mapping[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


def _matching(form: re.Pattern[str], key: str, value: str, expected: str) -> str:
    if not form.fullmatch(value):
        raise InvalidRequest(f"metadata {key}: expected {expected}, found {value[:80]!r}", param=key)
    return value
