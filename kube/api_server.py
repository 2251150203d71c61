"""The Kubernetes API server, as any program of ours asks it: the connection, one call, and what a refusal means.

The only file that imports `kubernetes`, for the connection, its certificates, and the service account's token and its renewal.
What is asked, and what follows from the answers, belongs to whoever asks.
"""

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from twostep.core.errors import ConfigError
from twostep.kube.errors import ApiError

OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
CALL_S = 30.0


@asynccontextmanager
async def open_api_server(section: str, kubeconfig: Path | None = None) -> AsyncIterator["ApiServer"]:
    """Connect as this pod's service account, or as a kubeconfig says.

    `section` is where the configuration speaks of it. Raises ConfigError.
    """
    aio = _load_client(section)
    settings = await _settings(aio, section, kubeconfig)
    # Python 3.13 is strict about extensions that the certificates of many clusters lack.
    settings.disable_strict_ssl_verification = True
    async with aio.client.ApiClient(settings) as client:
        yield ApiServer(client)


class ApiServer:
    """`what` names, in each question, what it is about: errors begin with it. All raise ApiError."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def call(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout_s: float = CALL_S,
    ) -> Any:
        """Return the answer, read as JSON."""
        with api_errors(what):
            reply = await self._send(method, path, what, query or {}, body, content_type, timeout_s)
            async with reply:
                return json.loads(await reply.read())

    @asynccontextmanager
    async def lines(self, path: str, what: str, *, query: Mapping[str, Any], timeout_s: float) -> AsyncIterator[Any]:
        """Open an answer that goes on for a while, as an iterator of lines, each read as JSON."""
        with api_errors(what):
            reply = await self._send("GET", path, what, query, None, "application/json", timeout_s)
            async with reply:
                yield _lines(reply, what)

    async def _send(
        self, method: str, path: str, what: str, query: Mapping[str, Any], body: Any, content_type: str, timeout_s: float
    ) -> Any:
        """Return the server's unread reply. Raises ApiError when it refuses."""
        request = await self._client.param_serialize(
            method,
            path,
            query_params=[(key, value) for key, value in query.items() if value is not None],
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        reply = (await self._client.call_api(*request, _request_timeout=timeout_s)).response
        if reply.status >= 400:
            async with reply:
                raise _refusal(what, reply.status, await reply.text(), reply.headers.get("retry-after"))
        return reply


@contextmanager
def api_errors(what: str) -> Iterator[None]:
    """Turn what a connection fails with, or an answer that makes no sense, into ApiError."""
    aiohttp = importlib.import_module("aiohttp")
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as cause:
        raise ApiError(f"{what}: the API server cannot be reached: {cause or type(cause).__name__}") from cause
    except (ValueError, LookupError, TypeError) as cause:
        raise ApiError(f"{what}: the API server has sent something that is not an answer: {cause}") from cause


def own_namespace(section: str, given: str) -> str:
    """Return the namespace that was given, or this pod's own. Raises ConfigError when there is none."""
    if given:
        return given
    if not OWN_NAMESPACE.exists():
        raise ConfigError(f"{section}.namespace: expected a namespace, there is none to take by default outside a pod")
    return OWN_NAMESPACE.read_text(encoding="utf-8").strip()


async def _lines(reply: Any, what: str) -> AsyncIterator[Any]:
    with api_errors(what):
        while line := await reply.content.readline():
            yield json.loads(line)


def _refusal(what: str, status: int, body: str, retry_after: str | None) -> ApiError:
    return ApiError(
        f"{what}: the API server answers {status}: {_message(body)}",
        status=status,
        retry_after_s=float(retry_after) if retry_after and retry_after.isdigit() else 0.0,
    )


def _message(body: str) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, LookupError, TypeError):
        return body[:200].strip()


def _load_client(section: str) -> Any:
    try:
        importlib.import_module("kubernetes.aio.config")
        return importlib.import_module("kubernetes.aio")
    except ImportError as cause:
        raise ConfigError(f"{section}: the client is not installed: pip install 'twostep[k8s]'") from cause


async def _settings(aio: Any, section: str, kubeconfig: Path | None) -> Any:
    settings = aio.client.Configuration()
    try:
        if kubeconfig:
            await aio.config.load_kube_config(str(kubeconfig), client_configuration=settings)
        else:
            aio.config.load_incluster_config(client_configuration=settings)
    except aio.config.ConfigException as cause:
        raise ConfigError(
            f"{section}: {str(cause).rstrip('.')}: run in a pod with a service account, or give kubeconfig"
        ) from cause
    return settings
