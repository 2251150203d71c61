"""Tells how far the loading of a model is: always to whoever asks why it is not there, now and then to the log."""

import logging
import time
from collections.abc import Callable

from twostep.core.clock import Clock

Tell = Callable[[str], None]
"""Takes what is being done now, in words."""
LOG_EVERY_S = 5.0
GB = 1e9

log = logging.getLogger(__name__)


def tell_nobody(words: str) -> None:
    """Nobody waits for this model."""
    del words


class WeightsProgress:
    """Counts the bytes of a model's weights that are loaded. A model that loads in seconds leaves no line in the log."""

    def __init__(self, total_bytes: int, tell: Tell, clock: Clock = time.monotonic) -> None:
        self._total_bytes = total_bytes
        self._tell = tell
        self._clock = clock
        self._done_bytes = 0
        self._logged_at = clock()

    def advance(self, num_bytes: int) -> None:
        """So many more bytes are loaded."""
        self._done_bytes += num_bytes
        words = f"loading weights: {self._done_bytes / GB:.1f} of {self._total_bytes / GB:.1f} GB"
        self._tell(words)
        now = self._clock()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            log.info(words)
