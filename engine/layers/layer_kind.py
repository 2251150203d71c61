"""How the layers of a model differ: by how they turn positions, and by how far back they look."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from twostep.engine.layers.rope import RopeConfig


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A query sees the last `window` tokens, its own among them; None: all tokens up to its own."""

    rope: RopeConfig
    window: int | None = None


def rope_description(kinds: Sequence[LayerKind]) -> str:
    """Return text that is equal if and only if all layers turn positions alike, layer by layer."""
    return _by_runs(kind.rope.description for kind in kinds)


def window_description(kinds: Sequence[LayerKind]) -> str:
    """Return text that is equal if and only if all layers look back equally far, layer by layer."""
    return _by_runs("none" if kind.window is None else str(kind.window) for kind in kinds)


def _by_runs(texts: Iterable[str]) -> str:
    """Return the text that all share, or `5x512 1xnone ...` from the first layer to the last."""
    runs = [(text, len(list(layers))) for text, layers in groupby(texts)]
    return runs[0][0] if len(runs) == 1 else " ".join(f"{count}x{text}" for text, count in runs)
