"""EndpointSlices as the Kubernetes API sends them."""

from collections.abc import Mapping, Sequence
from typing import Any


def endpoint(
    host: str, uid: str, *, zone: str | None = None, node: str | None = None, terminating: bool = False
) -> dict[str, Any]:
    where = {name: value for name, value in (("zone", zone), ("nodeName", node)) if value}
    return {
        "addresses": [host],
        "conditions": {"ready": not terminating, "serving": True, "terminating": terminating},
        "targetRef": {"kind": "Pod", "namespace": "prod", "name": f"pod-{uid}", "uid": uid},
        **where,
    }


def endpoint_slice(
    name: str, role: str, endpoints: Sequence[Mapping[str, Any]] | None, *, version: int = 1, port: int | None = 7000
) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "prod",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {"twostep.dev/role": role, "kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"name": "metrics", "port": 9000, "protocol": "TCP"}, {"name": "grpc", "port": port, "protocol": "TCP"}],
        "endpoints": endpoints,
    }
