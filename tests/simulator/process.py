"""One life of a program: its event loop, its threads and its clock. It can be frozen, go on, and be killed."""

from collections.abc import Callable, Coroutine
from typing import Any

from twostep.tests.simulator.event_loop import SimLoop, SimTask, origin
from twostep.tests.simulator.threads import SimThreads
from twostep.tests.simulator.world import World


class Process:
    """`name` stays over restarts, `life` counts them. Clocks of different processes have nothing to do with each other."""

    def __init__(self, world: World, name: str, life: int, address: str) -> None:
        self.world = world
        self.name = name
        self.life = life
        self.address = address
        self.is_dead = False
        self.is_frozen = False
        self.chance = world.chance(f"{name}.{life}")
        self.loop = SimLoop(self)
        self.threads = SimThreads(self)
        self._held: list[Callable[[], None]] = []
        self._offset_s = float(round(1000 * self.chance.random()))

    def __str__(self) -> str:
        return f"{self.name}.{self.life}"

    def clock(self) -> float:
        return self.world.now + self._offset_s

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Let `what` happen when this process's clock shows `when`."""
        self.world.at(when - self._offset_s, self, what)

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self.world.after(delay_s, self, what)

    def hesitation(self) -> float:
        """Return how long a thread that could run does not."""
        drawn = self.chance.random()
        return drawn * 1e-4 if drawn < 0.995 else 0.04

    def step_s(self) -> float:
        return 1e-3 + self.chance.random() * 8e-3

    def run(self, what: Callable[[], None]) -> None:
        if self.is_frozen:
            self._held.append(what)
            return
        try:
            what()
        except Exception as error:  # noqa: BLE001 - whatever flies out of an event is a defect
            self.world.violate("no unexpected exception", f"{self}: {error!r}{origin(error)}")
        self.threads.look()

    def start(self, main: Coroutine[Any, Any, Any]) -> SimTask:
        task = self.loop.create_task(main, name=f"{self} main")
        task.add_done_callback(self._require_good_end)
        return task

    def _require_good_end(self, main: SimTask) -> None:
        if not self.is_dead and not main.cancelled() and (error := main.exception()):
            self.world.violate("no unexpected exception", f"{self} ends with {error!r}{origin(error)}")

    def freeze(self) -> None:
        self.is_frozen = True
        self.world.note(self.name, "stands still")

    def go_on(self) -> None:
        """Everything that fell due meanwhile happens now, in the order in which it fell due."""
        if self.is_dead or not self.is_frozen:
            return
        self.is_frozen = False
        self.world.note(self.name, "goes on")
        held, self._held = self._held, []
        for number, what in enumerate(held):
            self.after(number * 1e-6, what)

    def kill(self) -> None:
        """Never runs again, not even to clean up."""
        self.is_dead = True
        self.world.note(self.name, "is dead")
