"""What a gRPC call brings beside its message: an id, what the caller says of itself, and how long it will wait."""

from collections.abc import Mapping
from dataclasses import replace

from twostep.core.spans import TRACE_KEY, TraceContext
from twostep.proto.rpc import Context
from twostep.router.front.request_record import RequestIds, new_request_ids
from twostep.router.front.wishes import PRIORITY_KEY, TENANT_KEY, Wishes, read_wishes

ID_KEY = "x-request-id"
TIMING_KEY = "server-timing"


def read_ids(context: Context) -> RequestIds:
    return new_request_ids(_metadata(context).get(ID_KEY))


def read_caller(context: Context) -> Mapping[str, str]:
    """Return tenant, priority and trace, as far as they are given, for the log.

    A malformed trace is left out: that is what its specification asks for.
    """
    given = _metadata(context)
    named = {"tenant": given.get(TENANT_KEY), "priority": given.get(PRIORITY_KEY)}
    caller = {name: value for name, value in named.items() if value}
    if trace := TraceContext.parse(given.get(TRACE_KEY, "")):
        caller["traceparent"] = trace.header()
    return caller


def read_call_wishes(context: Context) -> Wishes:
    """Return what the call asks for beside its message; its own deadline counts too. Raises InvalidRequest."""
    wishes, remaining_s = read_wishes(_metadata(context).get), context.time_remaining()
    limits = [limit for limit in (wishes.timeout_s, remaining_s) if limit is not None]
    return replace(wishes, timeout_s=min(limits, default=None))


def _metadata(context: Context) -> Mapping[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
