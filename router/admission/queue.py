"""Decides who may ask the nodes now, who waits, and who is refused and told when to come back. Pure: `now` is in seconds.

Work is bounded, not requests: seconds of computing sent ahead to the nodes, and tokens of KV. Tenants take turns by deficit
round robin (Shreedhar and Varghese, 1995); within a tenant priority decides, then the deadline, then who came first.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field

from twostep.core.errors import QueueFull
from twostep.core.ids import RequestId
from twostep.core.turnover import HoldMeter, Supply
from twostep.router.admission.arrivals import Arrivals
from twostep.router.admission.backlog import Backlog, ahead_of
from twostep.router.admission.demand import NOTHING, Capacity, Demand, DemandSum, Entry
from twostep.router.admission.promises import Promises

TURN_TOKENS = 8192
"""What a tenant's turn adds to what it may take."""
PATIENCE = 2.0
"""Who comes when told may wait so many times longer than others: estimates err."""
UNKNOWN_WAIT_S = 1.0
"""The wait while nothing has come back yet."""
SHORTEST_S = 1.0
LONGEST_S = 300.0
"""What is expected to come is not thought of beyond this."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`ahead_s` of work is sent ahead to each node; whoever would wait for more than `wait_s` is refused."""

    ahead_s: float
    wait_s: float


@dataclass(slots=True)
class _Admitted:
    demand: Demand
    since: float
    is_computed: bool = False


@dataclass(slots=True)
class _Tenant:
    waiting: list[tuple[int, float, int, Entry]] = field(default_factory=list)
    deficit: float = 0.0


class AdmissionQueue:
    """Whoever `arrive`s waits until `admit` returns it, then is counted until it `leave`s."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._tenants: dict[str, _Tenant] = {}
        self._turns: deque[str] = deque()
        self._waiting: dict[RequestId, Entry] = {}
        self._admitted: dict[RequestId, _Admitted] = {}
        self._queued = Backlog()
        self._held, self._computing = DemandSum(), DemandSum()
        self._promises = Promises()
        self._arrivals = Arrivals()
        self._kv_holds = HoldMeter()
        self._num_arrived = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_admitted(self) -> int:
        return len(self._admitted)

    def arrive(self, entry: Entry, capacity: Capacity, now: float) -> None:
        """Take a place in the queue. Raises QueueFull, which says when there will be room; that room is kept."""
        self._promises.expire(now)
        allowed_s = max(0.0, min(self._limits.wait_s, entry.deadline - now))
        if self._promises.is_due(entry, now):
            allowed_s = min(PATIENCE * allowed_s, max(0.0, entry.deadline - now))
            wait_s = self._wait_behind(entry, capacity)
        else:
            wait_s = self._wait_of_fresh(entry, capacity, allowed_s, now)
        if wait_s > allowed_s:
            retry_after_s = max(SHORTEST_S, self._wait_behind_all(entry, capacity, now) - self._limits.wait_s)
            raise QueueFull(
                f"a request of this size would wait for {wait_s:.1f} s, at most {allowed_s:.1f} s are allowed",
                retry_after_s=self._promises.make(entry, retry_after_s, now),
            )
        self._arrivals.record(entry, now)
        self._promises.keep(entry)
        self._enqueue(entry)

    def admit(self, capacity: Capacity, now: float) -> list[Entry]:
        """Return who may go now, in order; they count as admitted."""
        admitted: list[Entry] = []
        while (entry := self._head()) and self._wait_s(entry.demand, capacity, NOTHING) <= 0.0:
            self._pop(entry)
            self._admitted[entry.request] = _Admitted(entry.demand, now)
            self._held.add(entry.demand)
            self._computing.add(entry.demand)
            admitted.append(entry)
        return admitted

    def computed(self, request: RequestId) -> None:
        """The prompt of an admitted request has been computed: others may be sent ahead."""
        known = self._admitted.get(request)
        if known and not known.is_computed:
            known.is_computed = True
            self._computing.remove(known.demand)

    def leave(self, request: RequestId, now: float) -> None:
        """The request has ended, be it while it waited."""
        if entry := self._waiting.pop(request, None):
            self._queued.remove(entry)
        self.computed(request)
        if known := self._admitted.pop(request, None):
            self._held.remove(known.demand)
            self._kv_holds.record(known.demand.kv_tokens, now - known.since)

    def _wait_of_fresh(self, entry: Entry, capacity: Capacity, allowed_s: float, now: float) -> float:
        """Return the wait behind what is there and all that will go before `entry` within `allowed_s`.

        What is longer than `allowed_s` is too short: more would come meanwhile.
        """
        if not self._wait_behind(entry, capacity, self._promises.until(now)):
            return 0.0
        coming = self._arrivals.outranking(entry, allowed_s, now)
        return self._wait_behind(entry, capacity, self._promises.until(now + allowed_s), coming)

    def _wait_behind_all(self, entry: Entry, capacity: Capacity, now: float) -> float:
        """Return the wait behind what is there, whatever was promised, and what will have come until then that goes first.

        That is the fixed point of `after`. It grows ever more slowly, so that a secant finds no less than the fixed point.
        """

        def after(seconds: float) -> float:
            return self._wait_behind(entry, capacity, self._promises.all, self._arrivals.outranking(entry, seconds, now))

        known_s = after(0.0)
        growth = after(known_s) / known_s - 1.0 if known_s else 0.0
        return after(min(LONGEST_S, known_s / (1.0 - growth)) if growth < 1.0 else LONGEST_S)

    def _wait_behind(self, entry: Entry, capacity: Capacity, *expected: Backlog) -> float:
        return self._wait_s(entry.demand, capacity, ahead_of(entry, (self._queued, *expected), TURN_TOKENS))

    def _wait_s(self, demand: Demand, capacity: Capacity, ahead: DemandSum) -> float:
        """Return in how many seconds there will be room for `demand` behind `ahead`, by the measured rates.

        A request that is too large for the limits goes when nothing else is there.
        """
        if not capacity.num_computing:
            return 0.0
        compute_s = self._computing.compute_s + ahead.compute_s
        over_s = compute_s + demand.compute_s - self._limits.ahead_s * capacity.num_computing
        wait_s = min(over_s, compute_s) / capacity.num_computing
        return max(0.0, wait_s, self._room_wait_s(demand, capacity, ahead))

    def _room_wait_s(self, demand: Demand, capacity: Capacity, ahead: DemandSum) -> float:
        held = self._held.kv_tokens
        if not capacity.kv_tokens or not held:
            return 0.0
        supply = Supply(capacity.kv_tokens - held, held, self._kv_holds.mean_s)
        known_s = supply.wait_s(ahead.kv_tokens + demand.kv_tokens)
        return UNKNOWN_WAIT_S if known_s is None else known_s

    def _enqueue(self, entry: Entry) -> None:
        self._num_arrived += 1
        if entry.tenant not in self._tenants:
            self._tenants[entry.tenant] = _Tenant()
            self._turns.append(entry.tenant)
        waiting = self._tenants[entry.tenant].waiting
        heapq.heappush(waiting, (entry.priority, entry.deadline, self._num_arrived, entry))
        self._waiting[entry.request] = entry
        self._queued.add(entry)

    def _head(self) -> Entry | None:
        """Return whose turn it is; every tenant that is passed over may take more next time."""
        while self._turns:
            tenant = self._tenants[self._turns[0]]
            while tenant.waiting and tenant.waiting[0][-1].request not in self._waiting:
                heapq.heappop(tenant.waiting)
            if not tenant.waiting:
                del self._tenants[self._turns.popleft()]
                continue
            if tenant.deficit >= tenant.waiting[0][-1].demand.kv_tokens:
                return tenant.waiting[0][-1]
            tenant.deficit += TURN_TOKENS
            self._turns.rotate(-1)
        return None

    def _pop(self, entry: Entry) -> None:
        tenant = self._tenants[entry.tenant]
        heapq.heappop(tenant.waiting)
        tenant.deficit -= entry.demand.kv_tokens
        del self._waiting[entry.request]
        self._queued.remove(entry)
