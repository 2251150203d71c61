"""Decides whether a decode node's copies differ too often for it to be sent anything more."""

import enum
from collections import deque
from typing import Annotated

from pydantic import Field

from twostep.core.config import Seconds, config
from twostep.node.config import Count


class Cause(enum.StrEnum):
    """Where KV was spoiled that a copy did not match."""

    SOURCE = "source"
    """In this node's memory, since it was computed."""
    PATH = "path"
    """On the way to the decode node, or in its memory."""


@config
class PairLimits:
    """When a pair of a prefill and a decode node is taken out of service, and for how long."""

    max_mismatches: Count = 3
    """A decode node whose copies differed in so many requests within `window_s`, though they left here sound, is suspended."""
    window_s: Seconds = 60.0
    suspended_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    """After so long it is shaken hands with again; it is sent KV as soon as bytes have arrived there unchanged."""


class PairHealth:
    """The mismatches of one decode node that were not this node's fault."""

    def __init__(self, limits: PairLimits) -> None:
        self._limits = limits
        self._at: deque[float] = deque(maxlen=limits.max_mismatches)

    def note_mismatch(self, now: float) -> None:
        self._at.append(now)

    def is_bad(self, now: float) -> bool:
        """Return whether the last `max_mismatches` mismatches lie within `window_s`."""
        return len(self._at) == self._limits.max_mismatches and now - self._at[0] <= self._limits.window_s

    def forgive(self) -> None:
        self._at.clear()
