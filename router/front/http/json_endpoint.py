"""An HTTP endpoint that answers one JSON body with another, at once."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from twostep.router.admission.in_flight import Admission
from twostep.router.front.http.body import BodyReader
from twostep.router.front.http.edge import IDS
from twostep.router.front.openai.event import Json
from twostep.router.front.request_record import ClientGone, recorded
from twostep.router.metrics import Metrics


class JsonEndpoint:
    """The ASGI endpoint of `answer`. Raises ServingError."""

    def __init__(
        self, answer: Callable[[bytes], Awaitable[Json]], bodies: BodyReader, admission: Admission, metrics: Metrics
    ) -> None:
        self._answer = answer
        self._admission = admission
        self._metrics = metrics
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientGone), recorded(self._metrics, scope[IDS], scope["path"]) as record:
            async with self._bodies.read(scope, receive) as body:
                with self._admission.admit():
                    reply = await self._answer(body)
            record.outcome = "ok"
            await JSONResponse(reply)(scope, receive, send)
