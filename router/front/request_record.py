"""What is kept of each request, whichever front door it came through: its ids, one count, one log line."""

import asyncio
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from twostep.core.errors import ServingError
from twostep.core.ids import RequestId, new_request_id
from twostep.core.logging import about_request
from twostep.router.front.openai.usage import Usage
from twostep.router.metrics import Metrics

log = logging.getLogger(__name__)

CLIENT_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class ClientGone(Exception):
    """Nobody reads the reply any more. The message says why."""


@dataclass(frozen=True, slots=True)
class RequestIds:
    """`internal` names the request towards the nodes and is always minted; `public` is what the client sees."""

    internal: RequestId
    public: str


def new_request_ids(given: str | None) -> RequestIds:
    """Return new ids; the public one is what the client has `given`, where that is a valid id."""
    internal = new_request_id()
    return RequestIds(internal, given if given and CLIENT_ID.fullmatch(given) else internal)


@dataclass(slots=True)
class RequestRecord:
    """Filled in while a request is served. `caller` is what the client said of itself."""

    outcome: str = "internal_error"
    usage: Usage | None = None
    caller: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def recorded(metrics: Metrics, ids: RequestIds, door: str) -> Iterator[RequestRecord]:
    """Yield the record of one request, and count and log it when the block ends, however it ends.

    The block sets the outcome of a request that went well; that of one that raises is the error's code. Every log line of
    the block carries the request's id.
    """
    record, started = RequestRecord(), asyncio.get_running_loop().time()
    with about_request(ids.internal):
        try:
            yield record
        except ServingError as error:
            record.outcome = error.code
            raise
        except (ClientGone, asyncio.CancelledError):
            record.outcome = "client_gone"
            raise
        finally:
            metrics.requests.labels(record.outcome).inc()
            _log(record, ids, door, asyncio.get_running_loop().time() - started)


def _log(record: RequestRecord, ids: RequestIds, door: str, seconds: float) -> None:
    usage = record.usage
    tokens = {} if usage is None else {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    named = {} if ids.public == ids.internal else {"client_request": ids.public}
    about = {"door": door, "outcome": record.outcome, "seconds": round(seconds, 6)}
    log.info("request ended", extra={**about, **named, **tokens, **record.caller})
