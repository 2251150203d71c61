"""What the router asks the Kubernetes API server: EndpointSlices of one namespace, with the verbs list and watch.

Nothing else is read, and nothing is written.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from twostep.kube.api_server import ApiServer, api_errors, open_api_server, own_namespace
from twostep.kube.errors import ApiError
from twostep.router.discovery.config import KubernetesDiscovery
from twostep.router.discovery.endpoint_slices import Slice
from twostep.router.discovery.kubernetes_watch import Events

SECTION = "discovery.kubernetes"
MARGIN_S = 10.0
"""How much longer than it was told the server may keep a watch."""
PAGE = 500


@asynccontextmanager
async def open_api(config: KubernetesDiscovery) -> AsyncIterator["KubernetesApi"]:
    """Connect as this pod's service account, or as a kubeconfig says. Raises ConfigError."""
    async with open_api_server(SECTION, config.kubeconfig) as server:
        yield KubernetesApi(server, config, own_namespace(SECTION, config.namespace))


class KubernetesApi:
    def __init__(self, server: ApiServer, config: KubernetesDiscovery, namespace: str) -> None:
        self._server = server
        self._config = config
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._what = f"endpointslices in namespace {namespace}"

    async def list_slices(self) -> tuple[Sequence[Slice], str]:
        slices: list[Slice] = []
        token: str | None = None
        while True:
            query = {"labelSelector": self._selector, "limit": PAGE, "continue": token}
            page = await self._server.call("GET", self._path, self._what, query=query)
            with api_errors(self._what):
                slices.extend(page["items"])
                token = page["metadata"].get("continue")
                if not token:
                    return slices, page["metadata"]["resourceVersion"]

    @asynccontextmanager
    async def watch(self, version: str) -> AsyncIterator[Events]:
        watch_s = self._config.watch_s
        query = {
            "labelSelector": self._selector,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": round(watch_s),
        }
        async with self._server.lines(self._path, self._what, query=query, timeout_s=watch_s + MARGIN_S) as lines:
            yield self._events(lines)

    @property
    def _selector(self) -> str | None:
        return self._config.selector or None

    async def _events(self, lines: AsyncIterator[Any]) -> AsyncIterator[tuple[str, Slice]]:
        with api_errors(self._what):
            async for event in lines:
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(f"watch of {self._what}: {status.get('message')}", status=status.get("code", 0))
                yield str(event["type"]), event["object"]
