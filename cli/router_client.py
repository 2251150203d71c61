"""Talks to a router over its OpenAI interface: sends a conversation, yields the pieces of the answer."""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from twostep.core.errors import NodeUnavailable, ServingError, error_classes

CONNECT_S = 5.0
READ_S = 600.0

Message = Mapping[str, str]


@dataclass(slots=True)
class Answer:
    """What one streamed answer has brought so far."""

    text: str = ""
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    bill: Mapping[str, Any] = field(default_factory=dict)


class RouterClient:
    """A connection to the router at `url`."""

    def __init__(self, url: str, *, transport: httpx.BaseTransport | None = None) -> None:
        timeout = httpx.Timeout(READ_S, connect=CONNECT_S)
        self._http = httpx.Client(base_url=url, timeout=timeout, trust_env=False, transport=transport)
        self._url = url

    def close(self) -> None:
        self._http.close()

    def model(self) -> str:
        """Return the name of the model that is served. Raises ServingError."""
        name: str = self._get("/v1/models")["data"][0]["id"]
        return name

    def explain(self, request: str) -> Mapping[str, Any]:
        """Return what the router remembers of a request, by any of its names. Raises ServingError."""
        return self._get(f"/requests/{quote(request, safe='')}")

    def stream(self, messages: Sequence[Message], answer: Answer, **options: Any) -> Generator[str]:
        """Yield the pieces of the answer's text as they come, and note everything in `answer`.

        Leaving the loop early closes the connection, which cancels the request. Raises ServingError.
        """
        body = {
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **options,
        }
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as reply:
                if reply.is_error:
                    reply.read()
                _raise_for_status(reply)
                yield from _pieces(reply.iter_lines(), answer)
        except httpx.TransportError as cause:
            raise self._broken_off(cause) if answer.text else self._unreachable(cause) from cause

    def _get(self, path: str) -> Mapping[str, Any]:
        try:
            reply = self._http.get(path)
        except httpx.TransportError as cause:
            raise self._unreachable(cause) from cause
        _raise_for_status(reply)
        told: Mapping[str, Any] = reply.json()
        return told

    def _broken_off(self, cause: httpx.TransportError) -> NodeUnavailable:
        return NodeUnavailable(f"the answer from {self._url} broke off ({cause})")

    def _unreachable(self, cause: httpx.TransportError) -> NodeUnavailable:
        return NodeUnavailable(f"no answer from {self._url} ({cause}): is `twostep up` running there?")


def _pieces(lines: Iterator[str], answer: Answer) -> Iterator[str]:
    for line in lines:
        data = line.removeprefix("data: ")
        if data == line or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise _error(event["error"])
        piece = _note(event, answer)
        if piece:
            yield piece


def _note(event: Mapping[str, Any], answer: Answer) -> str:
    answer.usage = event.get("usage") or answer.usage
    answer.bill = event.get("bill") or answer.bill
    piece = ""
    for choice in event["choices"]:
        piece += choice["delta"].get("content") or ""
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason
    answer.text += piece
    return piece


def _raise_for_status(reply: httpx.Response) -> None:
    if reply.is_success:
        return
    try:
        raise _error(reply.json()["error"])
    except (ValueError, KeyError, TypeError) as cause:
        raise ServingError(f"{reply.request.url} answered {reply.status_code}: {reply.text[:200]}") from cause


def _error(body: Mapping[str, Any]) -> ServingError:
    known = error_classes().get(body.get("code") or "", ServingError)
    return known(body["message"], param=body.get("param"))
