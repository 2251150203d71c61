"""What can happen to one request: everything that its state reacts to, from any node, in one stream."""

from dataclasses import dataclass

from twostep.core.bill import DecodeBill, PrefillBill
from twostep.core.errors import ServingError
from twostep.core.ids import NodeRef, RequestId
from twostep.core.request import FinishReason
from twostep.core.ticket import Ticket


@dataclass(frozen=True, slots=True)
class ReserveQueued:
    """D has put the request in its queue. `estimate_s` is None while D does not know its own pace."""

    attempt: int
    position: int
    estimate_s: float | None


@dataclass(frozen=True, slots=True)
class Reserved:
    """D has taken room; without a ticket it serves alone. `cached_tokens` is the prefix that D holds."""

    attempt: int
    ticket: Ticket | None
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class ReserveFailed:
    attempt: int
    error: ServingError


@dataclass(frozen=True, slots=True)
class ReserveSlow:
    """Some time has passed since D was asked for room."""

    attempt: int


@dataclass(frozen=True, slots=True)
class PrefillDone:
    attempt: int
    bill: PrefillBill


@dataclass(frozen=True, slots=True)
class PrefillFailed:
    attempt: int
    error: ServingError


@dataclass(slots=True)
class TokenArrived:
    """D's stream brought a token; `index` counts the request's output tokens from 0.

    Nobody changes it: it is not frozen because that takes thrice as long to make, for each token.
    """

    request: RequestId
    attempt: int
    index: int
    token: int


@dataclass(frozen=True, slots=True)
class DecodeEnded:
    """D's last word about an attempt. `num_tokens` is how many output tokens it has had there, None if D does not say."""

    request: RequestId
    attempt: int
    finish: FinishReason | None
    error: ServingError | None
    bill: DecodeBill | None
    num_tokens: int | None


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone, or has forgotten the request, which it had last been asked for in `attempt`."""

    attempt: int
    node: NodeRef
    error: ServingError


StreamEvent = TokenArrived | DecodeEnded
Event = ReserveQueued | Reserved | ReserveFailed | ReserveSlow | PrefillDone | PrefillFailed | StreamEvent | NodeLost
