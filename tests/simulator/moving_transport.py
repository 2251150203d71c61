"""Simulated transports for tests that know nothing of a world: its time moves on whenever somebody looks."""

from collections.abc import Callable

from twostep.core.ids import NodeRef
from twostep.kv_transfer.transport import Write, WriteState
from twostep.tests.simulator.process import Process
from twostep.tests.simulator.transport import Fabric, SimTransport
from twostep.tests.simulator.world import World

LOOK_S = 1e-4


class MovingTransport(SimTransport):
    """Each look takes a moment of virtual time."""

    def poll(self, write: Write) -> WriteState:
        self._look()
        return super().poll(write)

    def notifications(self) -> list[bytes]:
        self._look()
        return super().notifications()

    def _look(self) -> None:
        world = self._process.world
        world.run_until(lambda: False, limit_s=world.now + LOOK_S)
        world.now += LOOK_S


def moving_transports() -> Callable[[NodeRef], SimTransport]:
    world = World(0)
    fabric = Fabric(world)
    return lambda ref: MovingTransport(fabric, Process(world, str(ref), 1, "nowhere:1"), ref)
