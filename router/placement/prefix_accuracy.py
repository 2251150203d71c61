"""Compares the prefixes expected at nodes with those found there: what is wrong for long raises an alarm. Pure."""

from collections import OrderedDict
from dataclasses import dataclass

from twostep.core.ids import NodeRef

MAX_NODES = 16384
DECAY = 0.9
"""What each request leaves of the weight of those before it."""
MIN_REQUESTS = 8
ASTRAY_SHARE = 0.5
SOUND_SHARE = 0.25
"""From one share of wrong tokens on a node counts as astray, below the other no more."""


@dataclass(slots=True)
class _Record:
    num_requests: int = 0
    tokens: float = 0.0
    wrong: float = 0.0
    is_astray: bool = False


class PrefixAccuracy:
    """One record for each of the last `capacity` nodes that served something."""

    def __init__(self, capacity: int = MAX_NODES) -> None:
        self._capacity = capacity
        self._records: OrderedDict[NodeRef, _Record] = OrderedDict()

    def note(self, node: NodeRef, expected: int, found: int) -> bool | None:
        """Take up one request, in tokens. Returns whether the node is astray from now on, None when that has not changed."""
        record = self._records.setdefault(node, _Record())
        self._records.move_to_end(node)
        if len(self._records) > self._capacity:
            self._records.popitem(last=False)
        record.num_requests += 1
        record.tokens = record.tokens * DECAY + max(expected, found)
        record.wrong = record.wrong * DECAY + abs(expected - found)
        share = record.wrong / record.tokens if record.tokens else 0.0
        is_astray = share > (SOUND_SHARE if record.is_astray else ASTRAY_SHARE)
        if is_astray == record.is_astray or record.num_requests < MIN_REQUESTS:
            return None
        record.is_astray = is_astray
        return is_astray

    def share_wrong(self, node: NodeRef) -> float:
        """Return which part of the tokens lately expected or found at a node was only one of both."""
        record = self._records.get(node)
        return record.wrong / record.tokens if record and record.tokens else 0.0
