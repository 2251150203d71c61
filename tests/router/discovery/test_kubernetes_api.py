"""The real client against an imitation of a Kubernetes API server: what it asks, and what it makes of the answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kmock import KubernetesEmulator

from twostep.core.errors import ConfigError
from twostep.kube.errors import ApiError
from twostep.router.discovery.config import KubernetesDiscovery
from twostep.router.discovery.kubernetes_api import KubernetesApi, open_api
from twostep.router.discovery.kubernetes_watch import KubernetesWatch
from twostep.tests.router.discovery.slices import endpoint, endpoint_slice

pytestmark = pytest.mark.processes

SLICES = "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices"
SELECTOR = "app.kubernetes.io/instance=a,app.kubernetes.io/name=twostep"


def config_of(folder: Path, url: str) -> KubernetesDiscovery:
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    return KubernetesDiscovery(namespace="prod", selector=SELECTOR, kubeconfig=path, watch_s=30)


@pytest.fixture
async def api(kmock: KubernetesEmulator, tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    async with open_api(config_of(tmp_path, str(kmock.url))) as opened:
        yield opened


def page(*slices: dict[str, Any], version: str = "7", more: str = "") -> dict[str, Any]:
    return {"kind": "EndpointSliceList", "metadata": {"resourceVersion": version, "continue": more}, "items": list(slices)}


def status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "message": message}


async def read_to_the_end(api: KubernetesApi, version: str) -> None:
    async with api.watch(version) as events:
        async for _ in events:
            pass


async def test_a_list_asks_for_the_selected_slices_of_one_namespace_as_the_service_account(
    kmock: KubernetesEmulator, api: KubernetesApi
) -> None:
    one = endpoint_slice("d", "decode", [endpoint("10.0.0.1", "u1")])
    kmock[f"get {SLICES}"] << page(one)
    assert await api.list_slices() == ([one], "7")
    [request] = kmock
    assert (request.params["labelSelector"], request.headers["Authorization"]) == (SELECTOR, "Bearer secret-token")


async def test_a_long_list_is_read_page_by_page(kmock: KubernetesEmulator, api: KubernetesApi) -> None:
    one, two = endpoint_slice("a", "decode", []), endpoint_slice("b", "decode", [])
    kmock[f"get {SLICES}"] << (lambda request: page(two, version="8") if "continue" in request.params else page(one, more="t"))
    assert await api.list_slices() == ([one, two], "8")
    assert [request.params.get("continue") for request in kmock] == [None, "t"]


async def test_a_watch_asks_for_bookmarks_from_a_version_and_a_limited_time(
    kmock: KubernetesEmulator, api: KubernetesApi
) -> None:
    changed = endpoint_slice("d", "decode", [endpoint("10.0.0.1", "u1")], version=9)
    bookmark = {"type": "BOOKMARK", "object": {"kind": "EndpointSlice", "metadata": {"resourceVersion": "12"}}}
    kmock[f"get {SLICES}"] << ({"type": "MODIFIED", "object": changed}, bookmark)
    async with api.watch("7") as events:
        assert [kind async for kind, _ in events] == ["MODIFIED", "BOOKMARK"]
    asked = kmock[0].params
    assert (asked["watch"], asked["resourceVersion"], asked["allowWatchBookmarks"], asked["timeoutSeconds"]) == (
        "true",
        "7",
        "true",
        "30",
    )


async def test_an_event_may_be_longer_than_any_buffer(kmock: KubernetesEmulator, api: KubernetesApi) -> None:
    large = endpoint_slice("d", "decode", [endpoint(f"10.0.{n // 250}.{n % 250}", f"uid-{n}") for n in range(5000)])
    kmock[f"get {SLICES}"] << ({"type": "ADDED", "object": large},)
    async with api.watch("7") as events:
        assert [len(one["endpoints"]) async for _, one in events] == [5000]


async def test_an_expired_version_is_known_as_such_as_an_answer_and_in_mid_stream(
    kmock: KubernetesEmulator, api: KubernetesApi
) -> None:
    gone = status(410, "too old resource version: 7 (90)")
    kmock[f"get {SLICES}", {"resourceVersion": "1"}] << 410 << gone
    kmock[f"get {SLICES}", {"resourceVersion": "2"}] << ({"type": "ERROR", "object": gone},)
    for version in ("1", "2"):
        with pytest.raises(ApiError, match="too old resource version") as raised:
            await read_to_the_end(api, version)
        assert raised.value.is_expired


async def test_a_refusal_says_what_must_be_allowed_and_where(kmock: KubernetesEmulator, api: KubernetesApi) -> None:
    message = 'endpointslices.discovery.k8s.io is forbidden: User "system:serviceaccount:prod:x" cannot list resource'
    kmock[f"get {SLICES}"] << 403 << status(403, message)
    with pytest.raises(ApiError) as raised:
        await api.list_slices()
    assert str(raised.value) == f"endpointslices in namespace prod: the API server answers 403: {message}"
    assert not raised.value.is_expired


async def test_throttling_is_obeyed(kmock: KubernetesEmulator, api: KubernetesApi) -> None:
    kmock[f"get {SLICES}"] << 429 << {"Retry-After": "3"} << status(429, "too many requests")
    with pytest.raises(ApiError) as raised:
        await api.list_slices()
    assert raised.value.retry_after_s == 3.0


@pytest.mark.parametrize("answer", [b"<html>a proxy</html>", {"kind": "EndpointSliceList"}])
async def test_an_answer_that_makes_no_sense_is_an_error_like_any_other(
    kmock: KubernetesEmulator, api: KubernetesApi, answer: Any
) -> None:
    kmock[f"get {SLICES}"] << answer
    with pytest.raises(ApiError, match="something that is not an answer"):
        await api.list_slices()


async def test_a_server_that_is_not_there_is_an_error_like_any_other(tmp_path: Path) -> None:
    async with open_api(config_of(tmp_path, "http://127.0.0.1:1")) as api:
        with pytest.raises(ApiError, match="cannot be reached"):
            await api.list_slices()
        with pytest.raises(ApiError, match="cannot be reached"):
            await read_to_the_end(api, "1")


async def test_outside_of_a_pod_a_kubeconfig_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"discovery\.kubernetes: Service host/port is not set: run in a pod"):
        async with open_api(KubernetesDiscovery(namespace="prod")):
            pass


async def test_pods_that_come_leave_and_go_are_followed(kmock: KubernetesEmulator, tmp_path: Path) -> None:
    """Against the imitation's own objects, created, changed and deleted as Kubernetes' controller does it."""
    watch = KubernetesWatch(config_of(tmp_path, str(kmock.url)), open_api)
    resource = kmock.resource("discovery.k8s.io/v1/endpointslices")
    kmock.objects[resource, "prod", "d"] = endpoint_slice("d", "decode", [endpoint("10.0.0.1", "u1")])
    async with asyncio.timeout(60), aclosing(watch.changes()) as news, aiohttp.ClientSession(str(kmock.url)) as controller:  # type: ignore[type-var]

        async def until(*expected: tuple[str, bool]) -> None:
            while {(member.id, member.is_leaving) for member in await anext(news)} != set(expected):
                pass

        await until(("u1", False))
        await controller.post(SLICES, json=endpoint_slice("p", "prefill", [endpoint("10.0.0.2", "u2")], version=2))
        await until(("u1", False), ("u2", False))
        leaving = endpoint_slice("d", "decode", [endpoint("10.0.0.1", "u1", terminating=True)], version=3)
        await controller.patch(f"{SLICES}/d", json=leaving)
        await until(("u1", True), ("u2", False))
        await controller.delete(f"{SLICES}/d")
        await until(("u2", False))
