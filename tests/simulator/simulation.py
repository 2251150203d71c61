"""Runs one scenario to its end and says what was violated."""

import asyncio
import gc
import secrets
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from twostep.core.errors import NoReadyNode, ServingError
from twostep.core.ids import NodeRef
from twostep.router.bill import Intake
from twostep.router.config import RouterConfig
from twostep.tests.router.token_sinks import AtOnce
from twostep.tests.simulator.event_loop import origin
from twostep.tests.simulator.faults import HARMLESS, Act, Fate, FaultPlan, MessageFault, NodeFault
from twostep.tests.simulator.invariants import Invariants, watched_acceptance, watched_routers
from twostep.tests.simulator.model import expected
from twostep.tests.simulator.network import Network
from twostep.tests.simulator.nodes import NodeLife, RouterLife
from twostep.tests.simulator.process import Process
from twostep.tests.simulator.scenario import Ask, Scenario
from twostep.tests.simulator.transport import Fabric
from twostep.tests.simulator.world import Line, Violation, World

READY_LIMIT_S = 20.0
END_LIMIT_S = 90.0
SETTLE_S = 25.0
"""After the last fault is over and the last client has left, everything is given back within this time."""
SLACK_S = 0.5
"""A request ends this much after its deadline at the latest, as long as its router lives and is not frozen."""
PROVING = frozenset({"write", "Hello", "Probe"})
"""What proves a pair, and what costs it its proof when it fails."""
PATIENT_S = 40.0
"""A client that waits this long outlasts every timer."""
MAX_COSTLY = 3


@dataclass(slots=True)
class Client:
    """One request's client, and what came of it."""

    ask: Ask
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    error: ServingError | None = None
    has_left: bool = False
    task: asyncio.Task[None] | None = None
    router: RouterLife | None = None
    began_at: float = 0.0
    ended_at: float | None = None

    @property
    def is_over(self) -> bool:
        return self.router is not None and (self.ended_at is not None or self.router.process.is_dead)

    def __str__(self) -> str:
        end = "answered" if self.finish else f"failed: {self.error.code}" if self.error else "left" if self.has_left else "lost"
        return f"{self.ask.request.id} {end} with {len(self.tokens)} tokens"


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    violations: tuple[Violation, ...]
    digest: int
    num_events: int
    num_faults: int
    """Faults that happened: of those that were drawn, some wait for a call that never comes."""
    ended_at_s: float
    lines: tuple[Line, ...]
    clients: tuple[str, ...]


def simulate(scenario: Scenario, *, keeps_trace: bool = False) -> Result:
    with _own_chance(scenario.seed), _quiet_end():
        return _run(scenario, keeps_trace=keeps_trace)


def _run(scenario: Scenario, *, keeps_trace: bool) -> Result:
    cluster = Cluster(scenario, keeps_trace=keeps_trace)
    try:
        with watched_acceptance(cluster.world), watched_routers(cluster.world, cluster.invariants.at_nodes):
            cluster.run()
    finally:
        cluster.dispose()
    world = cluster.world
    return Result(
        scenario.seed,
        tuple(world.violations),
        world.digest,
        world.num_events,
        len(cluster.plan.happened),
        world.now,
        tuple(world.lines),
        tuple(map(str, cluster.clients)),
    )


class Cluster:
    """All processes of one run, over all their lives."""

    def __init__(self, scenario: Scenario, *, keeps_trace: bool) -> None:
        self.scenario = scenario
        self.world = World(scenario.seed, keeps_trace=keeps_trace)
        self.world.sliced = scenario.sliced
        self.network = Network(self.world)
        self.fabric = Fabric(self.world)
        self.plan = FaultPlan(scenario.faults, self._schedule)
        self.network.plan = self.fabric.plan = self.plan
        self.invariants = Invariants(self.world, self.life_of, self._wanted_token)
        self.network.watch = self.invariants.on_message
        self.fabric.on_post, self.fabric.on_landing = self.invariants.on_post, self.invariants.on_landing
        self.clients = [Client(ask) for ask in scenario.asks]
        self.lives: dict[str, list[Any]] = {}
        self.calm_at = 0.0
        for name in (*scenario.prefill, *scenario.decode, *scenario.routers):
            self.start(name)

    def run(self) -> None:
        world = self.world
        if not world.run_until(self._is_ready, limit_s=READY_LIMIT_S):
            world.violate("the cluster gets ready", "not every pair has proved itself")
            return
        self._begin_storm()
        if not world.run_until(self._are_clients_over, limit_s=END_LIMIT_S):
            self._blame_clients()
            return
        for client in self.clients:
            self._check_answer(client)
        world.run_until(self._is_settled, limit_s=max(world.now, self.calm_at) + SETTLE_S)
        if not world.violations:
            self._check_settled()
        self._shut_down()
        self._check_failures()

    # Lives.

    def current(self, name: str) -> Any:
        return self.lives[name][-1]

    def start(self, name: str) -> None:
        """Begin a new life of a program, at the address of the one before."""
        lives = self.lives.setdefault(name, [])
        scenario, process = self.scenario, Process(self.world, name, len(lives) + 1, f"{name}:1")
        if name in scenario.routers:
            lives.append(RouterLife(process, self.network, self._router_config(name)))
            return
        config = scenario.prefill[name] if name in scenario.prefill else scenario.decode[name]
        lives.append(NodeLife(process, self.network, self.fabric, config, self.invariants.watch_node))

    def all_lives(self) -> list[Any]:
        return [life for lives in self.lives.values() for life in lives]

    def life_of(self, ref: NodeRef) -> NodeLife | None:
        return next((life for life in self.lives[ref.id] if life.ref == ref), None)

    def _wanted_token(self, request: str, index: int) -> int | None:
        ask = next(client.ask for client in self.clients if client.ask.request.id == request)
        tokens = expected(ask.request).tokens
        return tokens[index] if index < len(tokens) else None

    def _router_config(self, name: str) -> RouterConfig:
        return RouterConfig(
            router_id=name,
            prefill=tuple(f"{name}:1" for name in self.scenario.prefill),
            decode=tuple(f"{name}:1" for name in self.scenario.decode),
            lease_s=3.0,
            node_lost_s=1.0,
            recovery_wait_s=2.0,
            allow_decode_alone=self.scenario.allow_decode_alone,
        )

    def _is_ready(self) -> bool:
        pairs = len(self.scenario.prefill) * len(self.scenario.decode)
        pools = [self.current(name).pool for name in self.scenario.routers]
        return all(pool and len(pool.proven_pairs()) == pairs for pool in pools)

    # The storm.

    def _begin_storm(self) -> None:
        self.world.note("*", "the storm begins")
        self.plan.open()
        for client in self.clients:
            self.world.after(client.ask.at_s, None, lambda client=client: self._arrive(client))

    def _arrive(self, client: Client) -> None:
        router = client.router = self.current(client.ask.router)
        if router.is_up and router.dispatcher:
            router.process.after(0.0, lambda: self._ask(client, router))
        else:
            # Nobody listens yet, or any more: the connection is refused.
            client.ended_at = self.world.now

    def _ask(self, client: Client, router: RouterLife) -> None:
        client.began_at = self.world.now
        client.task = router.process.loop.create_task(self._serve(client, router), name=f"client {client.ask.request.id}")
        client.task.add_done_callback(lambda _: self._end(client))
        if client.ask.leaves_s is not None:
            router.process.after(client.ask.leaves_s, lambda: self._leave(client))

    def _leave(self, client: Client) -> None:
        if client.ended_at is None and client.task:
            client.has_left = True
            self.world.note(client.ask.router, f"the client of {client.ask.request.id} leaves")
            client.task.cancel()

    async def _serve(self, client: Client, router: RouterLife) -> None:
        ask = client.ask

        def on_tokens(tokens: Sequence[int]) -> bool:
            client.tokens.extend(tokens)
            self._check_tokens(client)
            return ask.enough is None or len(client.tokens) < ask.enough

        assert router.dispatcher is not None
        try:
            arrived = asyncio.get_running_loop().time()
            outcome = await router.dispatcher.run(
                ask.request, AtOnce(on_tokens), intake=Intake(arrived), timeout_s=ask.timeout_s
            )
            client.finish = outcome.finish or "enough"
        except ServingError as error:
            client.error = error
        except asyncio.CancelledError:
            if not client.has_left:
                raise

    def _end(self, client: Client) -> None:
        client.ended_at = self.world.now
        self.world.note(client.ask.router, f"{client}: {client.finish or (client.error and client.error.message)}")

    def _schedule(self, fault: NodeFault) -> None:
        self.calm_at = max(self.calm_at, self.world.now + fault.when.delay_s + fault.for_s)
        self.world.after(fault.when.delay_s, None, lambda: self._begin(fault))

    def _begin(self, fault: NodeFault) -> None:
        world, life = self.world, self.current(fault.process)
        self.calm_at = max(self.calm_at, world.now + fault.for_s)
        world.note("*", f"{fault.process} {fault.act} {fault.other}".rstrip())
        match fault.act:
            case Act.PARTITION:
                self.network.partition(fault.process, fault.other, fault.for_s)
            case Act.CUT:
                self.network.cut(fault.process, fault.other)
            case _ if not life.is_up:
                return
            case Act.KILL:
                life.process.kill()
                self.network.die(life.process)
                world.after(fault.for_s, None, lambda: self._restart(fault.process))
            case Act.FREEZE:
                life.process.freeze()
                self.network.stand_still(life.process, fault.for_s)
                world.after(fault.for_s, None, life.process.go_on)
            case Act.HANG:
                life.process.threads.hang("engine", world.now + fault.for_s)
            case Act.DRAIN:
                life.tell_to_stop()
                self._restart_when_gone(fault.process, life)

    def _restart_when_gone(self, name: str, life: Any) -> None:
        def look() -> None:
            self.calm_at = max(self.calm_at, self.world.now)
            if life.is_up:
                self.world.after(0.5, None, look)
            else:
                self._restart(name)

        self.world.after(0.5, None, look)

    def _restart(self, name: str) -> None:
        if not self.current(name).is_up:
            self.world.note(name, "is started anew")
            self.start(name)

    # The end.

    def _are_clients_over(self) -> bool:
        return all(client.is_over for client in self.clients)

    def _blame_clients(self) -> None:
        if not self.world.violations:
            waiting = [client.ask.request.id for client in self.clients if not client.is_over]
            self.world.violate("every request ends", f"{waiting} have no reply")

    def _check_tokens(self, client: Client) -> None:
        wanted, seen = expected(client.ask.request).tokens, tuple(client.tokens)
        if seen != wanted[: len(seen)]:
            self.world.violate("every token is the oracle's", f"{client.ask.request.id}: {seen} instead of {wanted}")

    def _check_answer(self, client: Client) -> None:
        wanted, ask = expected(client.ask.request), client.ask
        if (
            client.finish
            and client.finish != "enough"
            and (tuple(client.tokens), client.finish) != (wanted.tokens, wanted.finish)
        ):
            self.world.violate(
                "every answer is the oracle's",
                f"{ask.request.id} ended with {client.finish} after {len(client.tokens)} of {len(wanted.tokens)} tokens",
            )
        is_refused = isinstance(client.error, NoReadyNode) and not client.tokens
        if client.error and not is_refused and not client.has_left and ask.timeout_s >= PATIENT_S and self._can_be_served(ask):
            self.world.violate("who can be served is served", f"{ask.request.id}: {client.error.code}: {client.error.message}")
        if client.error and type(client.error) is ServingError:
            self.world.violate("every error has a type", f"{ask.request.id}: {client.error.message}")

    def _can_be_served(self, ask: Ask) -> bool:
        """Whether what went wrong leaves a request a way: its router and a pair of nodes that nothing has happened to.

        Each fault of a call may cost an attempt, so there may be no more of them than a request has attempts. The only pair may
        not lose its proof to one fault and the next proof to another: a router does not wait that long.
        """
        faults, hit = self.plan.happened, set[str]()
        for fault in faults:
            if isinstance(fault, NodeFault):
                hit |= {fault.process, fault.other}
        if any(isinstance(fault, MessageFault) and (fault.method, fault.fate) == ("Reserve", Fate.DOUBLED) for fault in faults):
            # The second of two equal reservations is a conflict, whichever the router waits for. gRPC never makes two.
            return False
        num_costly = sum(isinstance(fault, NodeFault) or fault.fate not in HARMLESS for fault in faults)
        num_prefill, num_decode = (len(set(names) - hit) for names in (self.scenario.prefill, self.scenario.decode))
        if num_prefill * num_decode == 1 and self._num_unproving() > 1:
            return False
        return ask.router not in hit and num_prefill > 0 and num_decode > 0 and num_costly < MAX_COSTLY

    def _num_unproving(self) -> int:
        """How many faults may have cost a pair the proof that its bytes arrive."""
        met = [fault for fault in self.plan.happened if isinstance(fault, MessageFault)]
        return sum(fault.method in PROVING and fault.fate not in HARMLESS for fault in met)

    def _is_settled(self) -> bool:
        world = self.world
        if world.now < self.calm_at:
            return False
        return not any(self._leftovers())

    def _leftovers(self) -> Iterator[str]:
        for name in (*self.scenario.prefill, *self.scenario.decode):
            life = self.current(name)
            if not life.is_up or life.node is None:
                yield f"{name} is not up"
                continue
            yield from leftovers(life)
            yield from self._strangers(life)
        for name in self.scenario.routers:
            router = self.current(name)
            if not router.is_up or router.pool is None:
                yield f"{name} is not up"
                continue
            if not router.dispatcher._gate.is_empty:
                yield f"{name} holds room at the nodes for somebody"
            for node in router.pool.nodes:
                if node.live or node._expected:
                    yield f"{name} keeps {sorted(node.live)} at {node.client.address}"
                yield from self._misknown(name, router.pool, node)
        if self.fabric.flights and any(not flight.fate for flight in self.fabric.flights):
            yield "writes are on their way"

    def _misknown(self, router: str, pool: Any, node: Any) -> Iterator[str]:
        """Yield what a router takes to be in a node's prefix cache that is not there, or the other way round."""
        life = node.description and self.life_of(node.description.ref)
        if life and life.is_up and life.node:
            told, held = pool.prefixes.told(life.ref), set(life.node.parts.engine._pool.tables().by_hash)
            if told != held:
                yield f"{router} knows {len(told)} blocks of {life.process}, of its {len(held)} {len(held & told)}"

    def _strangers(self, life: NodeLife) -> Iterator[str]:
        """Yield the routers that a node still keeps something for though they are gone."""
        known = {current.pool._router for name in self.scenario.routers if (current := self.current(name)).pool}
        kept = set(life.node.parts.leases._leases)
        if life.role == "decode":
            kept |= set(life.node.parts.tokens._outboxes)
        if gone := sorted(kept - known):
            yield f"{life.process} remembers the routers {gone}"

    def _check_settled(self) -> None:
        if left := list(self._leftovers()):
            self.world.violate("nothing stays behind", "; ".join(left))

    def _shut_down(self) -> None:
        """Stop everything as SIGTERM does: no task, no call and no thread may be left."""
        if self.world.violations:
            return
        lives = [self.current(name) for name in self.lives]
        for life in lives:
            life.tell_to_stop()
        have_ended = self.world.run_until(lambda: all(life.process.is_dead for life in lives), limit_s=self.world.now + 20.0)
        if not have_ended and not self.world.violations:
            left = [str(life.process) for life in lives if not life.process.is_dead]
            self.world.violate("every program ends when told to", f"{left} go on")

    def _check_failures(self) -> None:
        for life in self.all_lives():
            for error in life.process.loop.unheard_failures():
                self.world.violate("no unexpected exception", f"{life.process}: a task has failed: {error!r}{origin(error)}")

    def dispose(self) -> None:
        """Let go of everything, also of what was killed in the middle of something; its cleaning up hits nobody any more."""
        for life in self.all_lives():
            life.process.is_dead = True
        for life in self.all_lives():
            life.process.threads.unwind()
            for task in life.process.loop.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]


def leftovers(life: NodeLife) -> Iterator[str]:
    """Yield whatever a node at rest should not hold any more."""
    node, name = life.node, str(life.process)
    census = node.parts.engine.census()
    for difference in node.integrity.check():
        yield f"{name}: {difference}"
    if census.referenced or census.free + census.cached != census.total:
        yield f"{name}: {census}"
    parts = node.parts
    if len(parts.background._jobs):
        yield f"{name}: {len(parts.background._jobs)} jobs"
    if life.role == "prefill":
        if len(parts.pushes) or node._sender._legs or node._sender._writes or node._sender._probes:
            sender = node._sender
            held = len(parts.pushes), len(sender._legs), len(sender._writes), len(sender._probes)
            yield f"{name}: (pushes, legs, writes, probes) at the sender are {held}"
        if legs := [leg.id for leg in node.legs]:
            yield f"{name}: legs {legs}"
        return
    if node._receiver._legs or node._receiver._inbox:
        yield f"{name}: {len(node._receiver._legs)} legs at the receiver"
    landing = node.parts.landing.census()
    if landing.free_bytes != landing.total_bytes:
        yield f"{name}: {landing}"
    if not node.parts.handoffs.is_empty:
        yield f"{name}: handoffs {[handoff.id for handoff in node.parts.handoffs]}"


@contextmanager
def _own_chance(seed: int) -> Iterator[None]:
    """Let everything that asks the system for random bytes get them from the seed."""
    chance = __import__("random").Random(f"{seed}/secrets")
    saved = secrets.token_bytes, secrets.token_hex, secrets.randbits
    secrets.token_bytes = lambda num_bytes=32: chance.randbytes(num_bytes)
    secrets.token_hex = lambda num_bytes=32: chance.randbytes(num_bytes).hex()
    secrets.randbits = chance.getrandbits
    try:
        yield
    finally:
        secrets.token_bytes, secrets.token_hex, secrets.randbits = saved


@contextmanager
def _quiet_end() -> Iterator[None]:
    """Collect no garbage while the world runs: what a dead process leaves behind must not wake up in the middle."""
    was_enabled, hook = gc.isenabled(), sys.unraisablehook
    gc.disable()
    try:
        yield
    finally:
        sys.unraisablehook = lambda _: None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            gc.collect(0)
        sys.unraisablehook = hook
        if was_enabled:
            gc.enable()


__all__ = ["Cluster", "Result", "replace", "simulate"]
