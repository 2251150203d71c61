"""Reads pods, as the Kubernetes API sends them. Pure: it is given the time."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from twostep.autoscaler.seen import Phase, Pod
from twostep.core.host_port import join_host_port

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
Json = Mapping[str, Any]


def read_pods(pods: Iterable[Json], port_name: str, now: datetime) -> list[Pod]:
    """Return the pods, the oldest first. Raises LookupError, TypeError and ValueError for what is not one."""
    return sorted((_pod(pod, port_name, now) for pod in pods), key=lambda pod: (-pod.age_s, pod.name))


def _pod(pod: Json, port_name: str, now: datetime) -> Pod:
    metadata = pod["metadata"]
    created = datetime.fromisoformat(metadata["creationTimestamp"])
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        phase=_phase(pod),
        age_s=max(0.0, (now - created).total_seconds()),
        startup_s=_startup_s(pod, created),
        address=_address(pod, port_name),
        deletion_cost=int((metadata.get("annotations") or {}).get(DELETION_COST, 0)),
    )


def _phase(pod: Json) -> Phase:
    phase = pod.get("status", {}).get("phase")
    if pod["metadata"].get("deletionTimestamp") or phase in ("Failed", "Succeeded"):
        return Phase.LEAVING
    if _condition(pod, "Ready").get("status") == "True":
        return Phase.READY
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return Phase.UNSCHEDULABLE
    return Phase.UNREADY if any(container.get("started") for container in _containers(pod)) else Phase.STARTING


def _startup_s(pod: Json, created: datetime) -> float | None:
    """Return how long the pod took to be ready; None when it is not, or was so before and has lost it."""
    ready = _condition(pod, "Ready")
    if ready.get("status") != "True" or any(container.get("restartCount") for container in _containers(pod)):
        return None
    return max(0.0, (datetime.fromisoformat(ready["lastTransitionTime"]) - created).total_seconds())


def _address(pod: Json, port_name: str) -> str:
    host = pod.get("status", {}).get("podIP")
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or ())
    port = next((port["containerPort"] for port in ports if port.get("name") == port_name), None)
    return join_host_port(host, port) if host and port else ""


def _condition(pod: Json, kind: str) -> Json:
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), {})


def _containers(pod: Json) -> Iterable[Json]:
    return pod.get("status", {}).get("containerStatuses") or ()
