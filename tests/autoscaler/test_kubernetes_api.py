"""The real client against an imitation of a Kubernetes API server: what is asked, what is changed, and what refusals mean."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kmock import KubernetesEmulator

from twostep.autoscaler.config import KubernetesConfig
from twostep.autoscaler.kubernetes_api import KubernetesApi, Lease, Note, Scale, open_api
from twostep.kube.errors import ApiError
from twostep.tests.autoscaler.scenes import config

pytestmark = pytest.mark.processes

PREFILL = config().prefill
SCALE = "/apis/apps/v1/namespaces/prod/deployments/twostep-prefill/scale"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/prod/leases"


@pytest.fixture
async def api(kmock: KubernetesEmulator, tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": str(kmock.url)}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    settings = KubernetesConfig(namespace="prod", kubeconfig=tmp_path / "kubeconfig", lease="twostep")
    async with open_api(settings) as opened:
        yield opened


def knows(kmock: KubernetesEmulator, path: str) -> None:
    """Let there be an object: the imitation answers no PATCH of anything else."""
    *version, _, namespace, plural, name = path.strip("/").split("/")
    kmock.objects[kmock.resource("/".join([*version[1:], plural])), namespace, name] = {"metadata": {"name": name}}


def scale_json(replicas: int | None) -> dict[str, Any]:
    spec = {} if replicas is None else {"replicas": replicas}
    return {"kind": "Scale", "metadata": {"name": "twostep-prefill", "resourceVersion": "7", "uid": "u"}, "spec": spec}


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Deployment", SCALE),
        ("StatefulSet", "/apis/apps/v1/namespaces/prod/statefulsets/twostep-prefill/scale"),
        ("LeaderWorkerSet", "/apis/leaderworkerset.x-k8s.io/v1/namespaces/prod/leaderworkersets/twostep-prefill/scale"),
    ],
)
async def test_whatever_has_a_scale_is_scaled_by_it_and_only_when_nobody_else_has_changed_it(
    kmock: KubernetesEmulator, api: KubernetesApi, kind: str, path: str
) -> None:
    pool = config(prefill={"kind": kind}).prefill
    knows(kmock, path.removesuffix("/scale"))
    kmock[f"get {path}"] << scale_json(3)
    kmock[f"patch {path}"] << scale_json(5)
    scale = await api.scale(pool)
    assert scale == Scale(3, "7", "u")
    await api.set_scale(pool, scale, 5)
    asked = kmock[1]
    assert asked.headers["Content-Type"] == "application/merge-patch+json"
    assert asked.data == {"metadata": {"resourceVersion": "7"}, "spec": {"replicas": 5}}
    assert asked.headers["Authorization"] == "Bearer secret-token"


async def test_a_scale_without_replicas_is_zero(kmock: KubernetesEmulator, api: KubernetesApi) -> None:
    kmock[f"get {SCALE}"] << scale_json(None)
    assert (await api.scale(PREFILL)).replicas == 0


async def test_pods_are_read_page_by_page(kmock: KubernetesEmulator, api: KubernetesApi) -> None:
    def page(name: str, more: str = "") -> dict[str, Any]:
        return {"kind": "PodList", "metadata": {"continue": more}, "items": [{"metadata": {"name": name}}]}

    kmock["get /api/v1/namespaces/prod/pods"] << (lambda request: page("b") if "continue" in request.params else page("a", "t"))
    assert [pod["metadata"]["name"] for pod in await api.pods("role=prefill")] == ["a", "b"]
    assert kmock[0].params["labelSelector"] == "role=prefill"


async def test_a_pods_deletion_cost_is_an_annotation(kmock: KubernetesEmulator, api: KubernetesApi) -> None:
    knows(kmock, "/api/v1/namespaces/prod/pods/p1")
    kmock["patch /api/v1/namespaces/prod/pods/p1"] << {"kind": "Pod", "metadata": {"name": "p1"}}
    await api.set_deletion_cost("p1", -1000)
    assert kmock[0].data == {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-1000"}}}


async def test_a_lease_is_made_then_renewed_and_lost_to_whoever_was_faster(
    kmock: KubernetesEmulator, api: KubernetesApi
) -> None:
    def lease_json(holder: str, version: str) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": holder, "renewTime": "t"}}

    kmock[f"get {LEASES}/twostep"] << 404 << {"kind": "Status", "code": 404, "message": "not found"}
    assert await api.lease() is None
    kmock[f"post {LEASES}"] << lease_json("me", "1")
    made = await api.put_lease(Lease("me", "", ""), "t", 30)
    assert made == Lease("me", "t", "1")
    kmock[f"put {LEASES}/twostep"] << 409 << {"kind": "Status", "code": 409, "message": "the object has been modified"}
    with pytest.raises(ApiError) as raised:
        await api.put_lease(made, "t2", 30)
    assert raised.value.is_conflict
    assert [request.data["metadata"] for request in kmock[1:]] == [
        {"name": "twostep"},
        {"name": "twostep", "resourceVersion": "1"},
    ]


async def test_an_event_is_about_the_pool(kmock: KubernetesEmulator, api: KubernetesApi) -> None:
    kmock["post /api/v1/namespaces/prod/events"] << {"kind": "Event", "metadata": {"name": "x"}}
    await api.tell(PREFILL, Scale(3, "7", "u"), Note("ScaledUp", "x" * 2000), "2026-01-01T00:00:00Z")
    told = kmock[0].data
    assert told["involvedObject"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "twostep-prefill",
        "namespace": "prod",
        "uid": "u",
    }
    assert (told["reason"], told["type"], len(told["message"])) == ("ScaledUp", "Normal", 1024)


async def test_a_refusal_names_the_pool_the_namespace_and_the_right_that_is_missing(
    kmock: KubernetesEmulator, api: KubernetesApi
) -> None:
    message = 'deployments.apps "twostep-prefill" is forbidden: cannot get resource "deployments/scale"'
    kmock[f"get {SCALE}"] << 403 << {"kind": "Status", "code": 403, "message": message}
    with pytest.raises(ApiError) as raised:
        await api.scale(PREFILL)
    start = "scale of Deployment twostep-prefill in namespace prod: the API server answers 403: "
    assert str(raised.value) == start + message
    assert raised.value.is_forbidden


async def test_an_answer_that_makes_no_sense_is_an_error_like_any_other(kmock: KubernetesEmulator, api: KubernetesApi) -> None:
    kmock[f"get {SCALE}"] << {"kind": "Scale"}
    with pytest.raises(ApiError, match="something that is not an answer"):
        await api.scale(PREFILL)
