"""What the autoscaler asks the Kubernetes API server: pods, scales, one Lease, and Events. All methods raise ApiError."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from twostep.autoscaler.config import KubernetesConfig, PoolConfig
from twostep.autoscaler.pods import DELETION_COST, Json
from twostep.kube.api_server import ApiServer, api_errors, open_api_server, own_namespace
from twostep.kube.errors import ApiError

SECTION = "kubernetes"
RESOURCES = {
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
}
PAGE = 500
MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Scale:
    """How many pods something is to have. `version` changes whenever anybody changes it."""

    replicas: int
    version: str
    uid: str


@dataclass(frozen=True, slots=True)
class Lease:
    """Who acts. `renewed` is what the holder wrote, and only compared with itself: clocks differ."""

    holder: str
    renewed: str
    version: str
    transitions: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """An Event about a pool."""

    reason: str
    message: str
    is_warning: bool = False


class Api(Protocol):
    """What is asked of the API server."""

    async def scale(self, pool: PoolConfig) -> Scale: ...
    async def set_scale(self, pool: PoolConfig, scale: Scale, replicas: int) -> None:
        """Ask for so many pods, unless somebody has changed it since `scale` was read: then it is a conflict."""

    async def pods(self, selector: str) -> Sequence[Json]: ...
    async def set_deletion_cost(self, pod: str, cost: int) -> None: ...
    async def lease(self) -> Lease | None:
        """Return the Lease; None while there is none."""

    async def put_lease(self, lease: Lease, now: str, lease_s: int) -> Lease:
        """Write the Lease, a new one where `version` is empty; it is a conflict when somebody else was faster."""

    async def tell(self, pool: PoolConfig, scale: Scale, note: Note, now: str) -> None: ...


@asynccontextmanager
async def open_api(config: KubernetesConfig) -> AsyncIterator["KubernetesApi"]:
    """Connect as this pod's service account, or as a kubeconfig says. Raises ConfigError."""
    async with open_api_server(SECTION, config.kubeconfig) as server:
        yield KubernetesApi(server, own_namespace(SECTION, config.namespace), config.lease)


class KubernetesApi:
    """The real one."""

    def __init__(self, server: ApiServer, namespace: str, lease: str) -> None:
        self._server = server
        self._namespace = namespace
        self._lease_name = lease
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    async def scale(self, pool: PoolConfig) -> Scale:
        what = self._what(pool)
        answer = await self._server.call("GET", self._scale_path(pool), what)
        with api_errors(what):
            metadata = answer["metadata"]
            return Scale(int(answer["spec"].get("replicas", 0)), metadata["resourceVersion"], metadata["uid"])

    async def set_scale(self, pool: PoolConfig, scale: Scale, replicas: int) -> None:
        body = {"metadata": {"resourceVersion": scale.version}, "spec": {"replicas": replicas}}
        await self._server.call("PATCH", self._scale_path(pool), self._what(pool), body=body, content_type=MERGE)

    async def pods(self, selector: str) -> Sequence[Json]:
        what, found, token = f"pods in namespace {self._namespace}", [], None
        while True:
            query = {"labelSelector": selector, "limit": PAGE, "continue": token}
            page = await self._server.call("GET", self._pods, what, query=query)
            with api_errors(what):
                found.extend(page["items"])
                token = page["metadata"].get("continue")
                if not token:
                    return found

    async def set_deletion_cost(self, pod: str, cost: int) -> None:
        body = {"metadata": {"annotations": {DELETION_COST: str(cost)}}}
        what = f"pod {pod} in namespace {self._namespace}"
        await self._server.call("PATCH", f"{self._pods}/{pod}", what, body=body, content_type=MERGE)

    async def lease(self) -> Lease | None:
        what = f"lease {self._lease_name} in namespace {self._namespace}"
        try:
            answer = await self._server.call("GET", f"{self._leases}/{self._lease_name}", what)
        except ApiError as error:
            if error.is_missing:
                return None
            raise
        return _lease(answer, what)

    async def put_lease(self, lease: Lease, now: str, lease_s: int) -> Lease:
        what = f"lease {self._lease_name} in namespace {self._namespace}"
        spec = {
            "holderIdentity": lease.holder,
            "renewTime": now,
            "leaseDurationSeconds": lease_s,
            "leaseTransitions": lease.transitions,
        }
        metadata = {"name": self._lease_name, **({"resourceVersion": lease.version} if lease.version else {})}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        method, path = ("PUT", f"{self._leases}/{self._lease_name}") if lease.version else ("POST", self._leases)
        return _lease(await self._server.call(method, path, what, body=body), what)

    async def tell(self, pool: PoolConfig, scale: Scale, note: Note, now: str) -> None:
        version, _ = RESOURCES[pool.kind]
        about = {"apiVersion": version, "kind": pool.kind, "name": pool.name, "namespace": self._namespace, "uid": scale.uid}
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{pool.name}.", "namespace": self._namespace},
            "involvedObject": about,
            "reason": note.reason,
            "message": note.message[:1024],
            "type": "Warning" if note.is_warning else "Normal",
            "source": {"component": "twostep-autoscaler"},
            "reportingComponent": "twostep.dev/autoscaler",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        path = f"/api/v1/namespaces/{self._namespace}/events"
        await self._server.call("POST", path, f"events in namespace {self._namespace}", body=body)

    def _scale_path(self, pool: PoolConfig) -> str:
        version, plural = RESOURCES[pool.kind]
        return f"/apis/{version}/namespaces/{self._namespace}/{plural}/{pool.name}/scale"

    def _what(self, pool: PoolConfig) -> str:
        return f"scale of {pool.kind} {pool.name} in namespace {self._namespace}"


def _lease(answer: Mapping[str, Any], what: str) -> Lease:
    with api_errors(what):
        spec = answer.get("spec") or {}
        return Lease(
            spec.get("holderIdentity") or "",
            spec.get("renewTime") or "",
            answer["metadata"]["resourceVersion"],
            int(spec.get("leaseTransitions") or 0),
        )
