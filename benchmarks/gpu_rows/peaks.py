"""What the device can do at most, measured in the same run: copying, and multiplying bfloat16."""

from collections.abc import Awaitable, Callable, Mapping

import torch

from twostep.benchmarks.gpu_rows.stage import Stage
from twostep.benchmarks.harness.rounds import Effort

COPY, GEMM = "copy GB/s, read and written", "bf16 GEMM TFLOP/s"


class Peaks:
    """Measured once, when first asked for."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._found: dict[str, float] = {}

    def found(self) -> Mapping[str, float]:
        if not self._found:
            self._found = {COPY: self._copy_gb_per_s(), GEMM: self._gemm_tflops()}
        return self._found

    def measured(self) -> Callable[[Effort], Awaitable[Mapping[str, float]]]:
        async def measure(_: Effort) -> Mapping[str, float]:
            return self.found()

        return measure

    def _copy_gb_per_s(self) -> float:
        source = torch.ones(self._stage.sizes.stream_bytes // 4, device=self._stage.device.place)
        target = torch.empty_like(source)
        return 2 * source.nbytes / 1e9 / self._stage.shortest_s(lambda: target.copy_(source))

    def _gemm_tflops(self) -> float:
        size, place = self._stage.sizes.gemm_size, self._stage.device.place
        left, right = (torch.randn(size, size, device=place, dtype=torch.bfloat16) for _ in range(2))
        return 2 * size**3 / 1e12 / self._stage.shortest_s(lambda: left @ right)
