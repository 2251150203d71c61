"""A prefill node that stops itself, by SIGSTOP, at the moment of its next write.

SIGUSR1 arms it to freeze before the write is posted, SIGUSR2 as soon as it has been; sent again it disarms.
"""

import signal
import threading
from typing import ClassVar

from twostep.core.ids import NodeRef
from twostep.core.program import leave, run_program
from twostep.kv_transfer.nixl_transport import NixlTransport
from twostep.kv_transfer.transport import Units, Write
from twostep.node import program
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.prefill_node.program import serve

BEFORE, AFTER = signal.SIGUSR1, signal.SIGUSR2


class FreezingTransport(NixlTransport):
    """NIXL, and the two moments at which it can freeze the process. `armed` are those at which it will."""

    armed: ClassVar[set[int]] = set()

    def post(self, peer: NodeRef, source_units: Units, landing_units: Units, note: bytes) -> Write:
        self._freeze_if_armed(BEFORE)
        write = super().post(peer, source_units, landing_units, note)
        self._freeze_if_armed(AFTER)
        return write

    def _freeze_if_armed(self, moment: int) -> None:
        if moment in self.armed:
            self.armed.remove(moment)
            # Sent to this thread: any other could be late to take it, and this one go on meanwhile.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


if __name__ == "__main__":
    for moment in (BEFORE, AFTER):
        signal.signal(moment, lambda signum, _: FreezingTransport.armed.symmetric_difference_update({signum}))
    program.WIRES = {**program.WIRES, "nixl": FreezingTransport}
    leave(run_program("freezing-prefill", "A prefill node that freezes itself.", PrefillNodeConfig, serve))
