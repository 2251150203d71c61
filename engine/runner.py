"""The seam between the engine and what computes: a model on CPU or GPU, or the fake one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from twostep.core.errors import RequestFault
from twostep.core.fingerprint import Fingerprint, Geometry
from twostep.engine.batch import Batch
from twostep.engine.device_report import DeviceReport
from twostep.engine.kv_cache import KVCache
from twostep.engine.memory_budget import MemoryLedger

OnLayers = Callable[[range], None]
"""Called inside a run each time the KV of a group of layers has been written, for all chunks of the batch, in order."""

NOT_NUMBERS = "the model gave logits that are not numbers (NaN or infinite)"
"""Why such a request fails."""

Drawn = int | RequestFault | None
"""What a chunk brought: a token; None where no draw was asked; or why this request alone failed (NaN in its logits)."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a batch brought, a `Drawn` for each chunk.

    `gap_s` is how long the device computed nothing before it, by the device's own clock; None where it has none.
    """

    drawn: list[Drawn]
    gap_s: float | None = None


Collect = Callable[[], Ran]
"""Waits until a launched batch has run. Called once, in the order of launches; may call `on_layers`, and raise EngineFault."""


class Runner(Protocol):
    """Runs batches over one KV cache. Used by one thread at a time.

    A batch writes the KV of every token of every chunk, and calls `on_layers` after each layer group, in `launch` or when it is
    collected. A fault of one request is returned in its place, not raised, so that the others of the batch keep their
    tokens. Raises EngineFault when the runner cannot go on.
    """

    @property
    def depth(self) -> int:
        """How many batches may be launched and not collected; with 1 a batch is known before the next is planned."""

    @property
    def kv(self) -> KVCache: ...

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def geometry(self) -> Geometry: ...

    @property
    def kernels(self) -> str:
        """What computes, and, where it stands in for what was asked for, why; for people."""

    @property
    def memory(self) -> MemoryLedger:
        """Where the memory went that was available at the start: the host's, or the device's."""

    @property
    def report(self) -> DeviceReport | None:
        """What a device with graphs and memory of its own has counted; None where there is none."""

    def launch(self, batch: Batch, on_layers: OnLayers) -> Collect:
        """Begin to run a batch; it runs after those launched before it."""
