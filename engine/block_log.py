"""The last changes of the prefix cache, numbered, for whoever keeps a picture of it. Bounded: who is too late starts anew.

Not safe for threads by itself: the engine's lock guards it.
"""

from collections import deque
from itertools import islice

from twostep.core.block_news import BlockNews
from twostep.core.ids import BlockHash


class BlockLog:
    """Keeps the last `capacity` events; `next` is the number of the one to come."""

    def __init__(self, capacity: int) -> None:
        self._events: deque[tuple[BlockHash, bool]] = deque(maxlen=capacity)
        self.next = 0

    def note_stored(self, block: BlockHash) -> None:
        self._events.append((block, True))
        self.next += 1

    def note_evicted(self, block: BlockHash) -> None:
        self._events.append((block, False))
        self.next += 1

    def since(self, first: int) -> BlockNews | None:
        """Return what the events from number `first` on come to; None when they are no longer here, or never were."""
        num_events = self.next - first
        if not 0 <= num_events <= len(self._events):
            return None
        # Of a block that came and went only the last word counts.
        last = dict(reversed(tuple(islice(reversed(self._events), num_events))))
        stored = tuple(block for block, is_stored in last.items() if is_stored)
        evicted = tuple(block for block, is_stored in last.items() if not is_stored)
        return BlockNews(first, self.next, stored, evicted)
