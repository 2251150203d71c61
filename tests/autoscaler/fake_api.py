"""An API server in memory: pods, scales, a Lease and Events, with whatever errors it is told to answer with."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from twostep.autoscaler.config import PoolConfig
from twostep.autoscaler.kubernetes_api import Lease, Note, Scale
from twostep.autoscaler.pods import DELETION_COST
from twostep.kube.errors import ApiError

START = datetime(2026, 1, 1, tzinfo=UTC)


def pod_json(name: str, *, ready: bool = True, port: int = 9090, created: datetime = START, **more: Any) -> dict[str, Any]:
    """Return a pod as the API sends it, ready a minute after its creation."""
    turned = (created + timedelta(seconds=60)).isoformat().replace("+00:00", "Z")
    status = {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": str(ready), "lastTransitionTime": turned},
        ],
        "containerStatuses": [{"name": "node", "restartCount": 0, "started": ready}],
    }
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": created.isoformat().replace("+00:00", "Z")},
        "spec": {"containers": [{"name": "node", "ports": [{"name": "metrics", "containerPort": port}]}]},
        "status": {**status, **more},
    }


@dataclass(slots=True)
class FakeApi:
    """`pods_of` by selector. `failing` is raised by every method until it is taken away; `scale_failing` by `set_scale`."""

    replicas: dict[str, int]
    pods_of: dict[str, list[dict[str, Any]]]
    failing: ApiError | None = None
    scale_failing: ApiError | None = None
    the_lease: Lease | None = None
    notes: list[tuple[str, Note]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    _versions: int = 0

    def _try(self) -> None:
        if self.failing:
            raise self.failing

    async def scale(self, pool: PoolConfig) -> Scale:
        self._try()
        return Scale(self.replicas[pool.name], "1", f"uid-{pool.name}")

    async def set_scale(self, pool: PoolConfig, scale: Scale, replicas: int) -> None:
        self._try()
        if self.scale_failing:
            raise self.scale_failing
        self.done.append(f"{pool.name} {replicas}")
        self.replicas[pool.name] = replicas

    async def pods(self, selector: str) -> Sequence[dict[str, Any]]:
        self._try()
        return self.pods_of[selector]

    async def set_deletion_cost(self, pod: str, cost: int) -> None:
        self._try()
        self.done.append(f"{pod} costs {cost}")
        for pods in self.pods_of.values():
            for one in pods:
                if one["metadata"]["name"] == pod:
                    one["metadata"]["annotations"] = {DELETION_COST: str(cost)}

    async def lease(self) -> Lease | None:
        self._try()
        return self.the_lease

    async def put_lease(self, lease: Lease, now: str, lease_s: int) -> Lease:
        self._try()
        if (lease.version or "") != (self.the_lease.version if self.the_lease else ""):
            raise ApiError("the object has been modified", status=409)
        self._versions += 1
        self.the_lease = replace(lease, renewed=now, version=str(self._versions))
        return self.the_lease

    async def tell(self, pool: PoolConfig, scale: Scale, note: Note, now: str) -> None:
        self._try()
        self.notes.append((pool.name, note))
