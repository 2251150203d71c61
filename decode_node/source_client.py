"""The gRPC edge towards prefill nodes: aborts and credits, each bounded in time."""

import logging
from collections.abc import Callable
from typing import Any

from twostep.core.errors import ServingError, StaleLeg
from twostep.core.ids import NodeRef
from twostep.node.calls import Channels, repeat_until_answered
from twostep.node.handoff_messages import Abort, AbortState, Credit
from twostep.node.handoff_wire import abort_state_from_pb, abort_to_pb, credit_to_pb
from twostep.proto import handoff_pb2_grpc
from twostep.proto.rpc import serving_errors

GIVE_UP_CALLS = 2
log = logging.getLogger(__name__)


class SourceClient:
    """Implements `SourceCalls` over gRPC. `address_of` knows where each prefill node listens."""

    def __init__(self, channels: Channels, address_of: Callable[[NodeRef], str | None], *, call_s: float) -> None:
        self._channels = channels
        self._address_of = address_of
        self._call_s = call_s

    async def abort(self, abort: Abort) -> bool:
        request, leg = abort_to_pb(abort), abort.leg

        async def call() -> AbortState:
            with serving_errors(str(leg.source)):
                reply = await self._stub(leg.source).Abort(request, timeout=self._call_s)
            return abort_state_from_pb(reply.state)

        try:
            return await repeat_until_answered(call, give_up_s=GIVE_UP_CALLS * self._call_s) is AbortState.DRAINED
        except ServingError as error:
            log.warning("an abort was not answered", extra={"request": leg.request, "reason": error.message})
            return False

    async def credit(self, credit: Credit) -> None:
        request = credit_to_pb(credit)

        async def call() -> None:
            with serving_errors(str(credit.leg.source)):
                await self._stub(credit.leg.source).Credit(request, timeout=self._call_s)

        try:
            await repeat_until_answered(call, give_up_s=GIVE_UP_CALLS * self._call_s)
        except ServingError as error:
            log.warning("a credit was not answered", extra={"request": credit.leg.request, "reason": error.message})

    def _stub(self, node: NodeRef) -> Any:
        address = self._address_of(node)
        if address is None:
            raise StaleLeg(f"nobody knows where {node} is")
        return handoff_pb2_grpc.HandoffSourceStub(self._channels.to(address))  # type: ignore[no-untyped-call]
