"""Keeps what Python does for itself from holding up a program's event loop: garbage collections, and turns of threads."""

import gc
import sys

SWITCH_S = 0.0005
"""For how long a thread that computes in Python may go on while the event loop's waits; Python's own choice is ten times that,
and one call costs the event loop several turns."""


def take_short_turns() -> None:
    """Let threads of this process take turns of half a millisecond."""
    sys.setswitchinterval(SWITCH_S)


def keep_loaded() -> None:
    """Leave all that is loaded by now out of every later garbage collection.

    It stays anyway, and looking through it, some 200,000 objects with a model loaded, stops all threads.
    """
    gc.collect()
    gc.freeze()
