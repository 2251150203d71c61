"""The seam between the engine and what computes: a model on CPU or GPU, or the fake one."""

from collections.abc import Callable
from typing import Protocol

from twostep.core.errors import RequestFault
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.engine.batch import Batch
from twostep.engine.kv_cache import KVCache

OnLayers = Callable[[range], None]
"""Called inside a run each time the KV of a group of layers has been written, for all chunks of the batch, in order."""

Drawn = int | RequestFault | None
"""What a chunk brought: a token; None where no draw was asked; or why this request alone failed (NaN in its logits)."""


class Runner(Protocol):
    """Runs batches over one KV cache. Used by one thread at a time.

    `run` writes the KV of every token of every chunk, and returns one `Drawn` per chunk. It calls `on_layers` after each
    layer group. A fault of one request is returned in its place, not raised, so that the others of the batch keep their
    tokens. Raises EngineFault when the runner cannot go on.
    """

    @property
    def kv(self) -> KVCache: ...

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def geometry(self) -> Geometry: ...

    @property
    def kernels(self) -> str:
        """What computes, and, where it stands in for what was asked for, why; for people."""

    def run(self, batch: Batch, on_layers: OnLayers) -> list[Drawn]: ...
