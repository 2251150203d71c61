"""The Kubernetes API server, as far as the router asks it anything: the only file that imports `kubernetes`.

Read are EndpointSlices of one namespace, with the verbs list and watch; nothing else, and nothing is written.
"""

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from twostep.core.errors import ConfigError
from twostep.router.discovery.config import KubernetesDiscovery
from twostep.router.discovery.endpoint_slices import Slice
from twostep.router.discovery.kubernetes_watch import ApiError, Events

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
LIST_S = 30.0
MARGIN_S = 10.0
"""How much longer than it was told the server may keep a watch."""
PAGE = 500


@asynccontextmanager
async def open_api(config: KubernetesDiscovery) -> AsyncIterator["KubernetesApi"]:
    """Connect as this pod's service account, or as a kubeconfig says. Raises ConfigError."""
    aio = _load_client()
    settings = await _settings(aio, config)
    # Python 3.13 is strict about extensions that the certificates of many clusters lack.
    settings.disable_strict_ssl_verification = True
    async with aio.client.ApiClient(settings) as client:
        yield KubernetesApi(aio, client, config, _namespace(config))


class KubernetesApi:
    def __init__(self, aio: Any, client: Any, config: KubernetesDiscovery, namespace: str) -> None:
        self._discovery = aio.client.DiscoveryV1Api(client)
        self._config = config
        self._namespace = namespace
        self._what = f"endpointslices in namespace {namespace}"

    async def list_slices(self) -> tuple[Sequence[Slice], str]:
        slices: list[Slice] = []
        token: str | None = None
        with self._errors():
            while True:
                page = await self._page(token)
                slices.extend(page["items"])
                token = page["metadata"].get("continue")
                if not token:
                    return slices, page["metadata"]["resourceVersion"]

    @asynccontextmanager
    async def watch(self, version: str) -> AsyncIterator[Events]:
        with self._errors():
            reply = await self._get(
                watch=True,
                resource_version=version,
                allow_watch_bookmarks=True,
                timeout_seconds=round(self._config.watch_s),
                _request_timeout=self._config.watch_s + MARGIN_S,
            )
            async with reply:
                yield self._events(reply)

    async def _page(self, token: str | None) -> Any:
        reply = await self._get(limit=PAGE, _continue=token, _request_timeout=LIST_S)
        async with reply:
            return json.loads(await reply.read())

    async def _get(self, **question: Any) -> Any:
        """Return the server's unread reply. Raises ApiError when it refuses."""
        reply = await self._discovery.list_namespaced_endpoint_slice_without_preload_content(
            self._namespace, label_selector=self._config.selector or None, **question
        )
        if reply.status >= 400:
            async with reply:
                raise self._refusal(reply.status, await reply.text(), reply.headers.get("retry-after"))
        return reply

    async def _events(self, reply: Any) -> AsyncIterator[tuple[str, Slice]]:
        with self._errors():
            while line := await reply.content.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(f"watch of {self._what}: {status.get('message')}", status=status.get("code", 0))
                yield event["type"], event["object"]

    def _refusal(self, status: int, body: str, retry_after: str | None) -> ApiError:
        return ApiError(
            f"{self._what}: the API server answers {status}: {_message(body)}",
            status=status,
            retry_after_s=float(retry_after) if retry_after and retry_after.isdigit() else 0.0,
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what a connection fails with, or an answer that makes no sense, into ApiError."""
        aiohttp = importlib.import_module("aiohttp")
        try:
            yield
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as cause:
            raise ApiError(f"{self._what}: the API server cannot be reached: {cause or type(cause).__name__}") from cause
        except (ValueError, LookupError, TypeError) as cause:
            raise ApiError(f"{self._what}: the API server has sent something that is not an answer: {cause}") from cause


def _message(body: str) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, LookupError, TypeError):
        return body[:200].strip()


def _load_client() -> Any:
    try:
        importlib.import_module("kubernetes.aio.config")
        return importlib.import_module("kubernetes.aio")
    except ImportError as cause:
        raise ConfigError("discovery.kubernetes: the client is not installed: pip install 'twostep[k8s]'") from cause


async def _settings(aio: Any, config: KubernetesDiscovery) -> Any:
    settings = aio.client.Configuration()
    try:
        if config.kubeconfig:
            await aio.config.load_kube_config(str(config.kubeconfig), client_configuration=settings)
        else:
            aio.config.load_incluster_config(client_configuration=settings)
    except aio.config.ConfigException as cause:
        raise ConfigError(
            f"discovery.kubernetes: {str(cause).rstrip('.')}: run in a pod with a service account, or give kubeconfig"
        ) from cause
    return settings


def _namespace(config: KubernetesDiscovery) -> str:
    if config.namespace:
        return config.namespace
    if not OWN_NAMESPACE.exists():
        raise ConfigError(
            "discovery.kubernetes.namespace: expected a namespace, there is none to take by default outside a pod"
        )
    return OWN_NAMESPACE.read_text(encoding="utf-8").strip()
