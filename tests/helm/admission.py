"""What an API server refuses though its schema takes it: names, labels, selectors, and lists that are maps by name.

Server-side apply, by which Helm 4 installs, refuses two entries of one name; where Kubernetes only warns, so do we here.
"""

import re
from collections.abc import Iterable, Iterator

from twostep.tests.helm.chart import Object

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""The name of a Service."""
DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def refusals(one: Object) -> Iterator[str]:
    """Yield why an API server would not take the object; nothing when it would."""
    name = one["metadata"]["name"]
    shape = DNS_1035 if one["kind"] == "Service" else DNS_1123
    if not isinstance(name, str) or not shape.fullmatch(name):
        yield f"{one['kind']} {name}: not a name"
    yield from _metadata(one["metadata"])
    if one["kind"] == "Deployment":
        yield from _deployment(one["spec"])
    if one["kind"] == "Pod":
        yield from _pod(one["spec"])
    if one["kind"] == "Service":
        yield from _twice("port", [(port["port"], port.get("protocol", "TCP")) for port in one["spec"]["ports"]])
    if one["kind"] == "HorizontalPodAutoscaler" and one["spec"]["minReplicas"] < 1:
        yield "minReplicas: 0 is not for everybody's cluster"


def _metadata(metadata: Object) -> Iterator[str]:
    for key, value in metadata.get("labels", {}).items():
        if not isinstance(value, str) or not LABEL.fullmatch(value):
            yield f"label {key}: {value!r}"
    for key, value in metadata.get("annotations", {}).items():
        if not isinstance(value, str):
            yield f"annotation {key}: {value!r}"


def _deployment(spec: Object) -> Iterator[str]:
    template = spec["template"]
    yield from _metadata(template["metadata"])
    if not spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items():
        yield "the selector does not find its own pods"
    if spec["progressDeadlineSeconds"] <= spec.get("minReadySeconds", 0):
        yield "progressDeadlineSeconds must be more than minReadySeconds"
    yield from _pod(template["spec"])


def _pod(pod: Object) -> Iterator[str]:
    volumes = [volume["name"] for volume in pod["volumes"]]
    containers = [*pod["containers"], *pod.get("initContainers", ())]
    yield from _twice("volume", volumes)
    yield from _twice("container", [container["name"] for container in containers])
    ports = [port["containerPort"] for container in pod["containers"] for port in container.get("ports", ())]
    yield from _twice("port", ports)
    for container in containers:
        mounts = container.get("volumeMounts", ())
        yield from _twice("variable", [variable["name"] for variable in container.get("env", ())])
        yield from _twice("mount", [mount["mountPath"] for mount in mounts])
        yield from (f"mount of no volume: {mount['name']}" for mount in mounts if mount["name"] not in volumes)
    yield from (
        f"nodeSelector {key}: {value!r}" for key, value in pod.get("nodeSelector", {}).items() if not isinstance(value, str)
    )


def _twice(what: str, names: Iterable[object]) -> Iterator[str]:
    seen = list(names)
    yield from sorted({f"{what} {name} is there twice" for name in seen if seen.count(name) > 1})
