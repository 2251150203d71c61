"""How busy a machine was with other work while a benchmark ran: figures from a machine that is shared are worth less."""

import os
import resource
import time
from pathlib import Path


class OtherLoad:
    """Measures from its making on."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._busy_s, self._own_s = _busy_s(), _own_s()

    def share(self) -> float:
        """Return the share of all cores' time that neither this process nor a child of it that has ended has used."""
        others_s = _busy_s() - self._busy_s - (_own_s() - self._own_s)
        return max(0.0, others_s / (time.monotonic() - self._started) / (os.cpu_count() or 1))


def _busy_s() -> float:
    """Return for how long all cores together have not been idle."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text(encoding="utf-8").split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
