"""One HTTP connection that no client can keep for nothing, or fill the router's memory through.

uvicorn by itself waits for ever for a request that is begun and for a reader that has stopped, takes headers of any size,
and does not notice that a client has left which had sent its next request already.
"""

import json
import select
from asyncio import AbstractEventLoop, BaseTransport
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from twostep.core.errors import HeadersTooLarge, InvalidRequest, RequestTimeout, ServingError
from twostep.router.front.http.edge import PIPE
from twostep.router.front.openai.event import error_body

MAX_HEAD_BYTES = 64 << 10
# Where a system cannot tell that the other side has hung up, it can tell that the connection is broken.
HUNG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How many seconds a client may take to send one request, and how many it may leave its reply unread."""

    send_s: float
    read_s: float


class GuardedConnection(HttpToolsProtocol):
    """`on_ended(why)` is told of each connection that is ended because of its client.

    It is the BodyPipe of the request that is being served.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
        *,
        timeouts: ClientTimeouts,
        on_ended: Callable[[str], None],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._timeouts = timeouts
        self._on_ended = on_ended
        # `cycle` is the last request that was begun, which may still wait for this one's reply.
        self._served: RequestResponseCycle | None = None
        self._sending_since: float | None = None
        self._is_in_head = False
        self._num_head_bytes = 0
        self._num_unread_bytes = 0
        self._unread_since = 0.0

    def write(self, piece: bytes) -> bool:
        """Write what uvicorn would for this piece of the body, without a message and the coroutines on its way."""
        reply = self._served
        if reply is None or not reply.chunked_encoding or reply.response_complete or self.flow.write_paused:
            return False
        if not reply.disconnected:
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def check(self) -> None:
        """End the connection if its client has kept it too long. Called now and then."""
        now = self.loop.time()
        if self._is_unread_for(now) > self._timeouts.read_s:
            self._on_ended("unread")
            self.transport.abort()
        elif self.flow.read_paused and self._has_hung_up():
            self.transport.abort()
        elif not self.transport.is_closing() and self._is_sending_for(now) > self._timeouts.send_s:
            self._refuse(RequestTimeout(f"the request was not there after {self._timeouts.send_s:g} s"))

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._note_sending()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._served and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._note_sending()
        self._num_head_bytes += len(data)
        super().data_received(data)
        if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HeadersTooLarge(f"the headers may have at most {MAX_HEAD_BYTES} bytes, found more"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # The end of one request and the beginning of the next may come in one piece.
        self._note_sending()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        is_served_at_once = self.cycle is None or self.cycle.response_complete
        super().on_headers_complete()
        if is_served_at_once:
            self._served = self.cycle
        self.cycle.scope[PIPE] = self  # type: ignore[literal-required]
        self._is_in_head = False
        self._num_head_bytes = 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        # What is neither head nor body, such as trailers, counts as head.
        self._num_head_bytes = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._sending_since = None
        self._num_head_bytes = 0

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._served, _ = self.pipeline[-1]
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequest(f"not a valid HTTP request: {msg.lower()}"))

    def _note_sending(self) -> None:
        if self._sending_since is None:
            self._sending_since = self.loop.time()

    def _is_sending_for(self, now: float) -> float:
        # While reading is paused it is the router that does not take the request.
        return 0.0 if self._sending_since is None or self.flow.read_paused else now - self._sending_since

    def _is_unread_for(self, now: float) -> float:
        num_unread = self.transport.get_write_buffer_size()
        if not num_unread or num_unread != self._num_unread_bytes:
            self._num_unread_bytes, self._unread_since = num_unread, now
        return now - self._unread_since

    def _refuse(self, error: ServingError) -> None:
        """Answer with `error`, unless in the middle of a reply, and close."""
        self._on_ended(error.code)
        if self._is_between_replies():
            self.transport.write(_reply(error))
        self.transport.close()

    def _is_between_replies(self) -> bool:
        if self._served is None or not self._served.response_started:
            return True
        return self._served.response_complete and self._is_in_head

    def _has_hung_up(self) -> bool:
        # Nothing is read while reading is paused, not even the end.
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), HUNG_UP)
        return bool(poll.poll(0))


def _reply(error: ServingError) -> bytes:
    body = json.dumps(error_body(error)).encode()
    status = HTTPStatus(error.http_status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
