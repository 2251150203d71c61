"""What /openapi.json tells of the HTTP door, held against the door itself."""

import json
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from twostep.core.errors import error_classes
from twostep.router.front.openai.reply_shapes import (
    ChatChunk,
    ChatReply,
    CompletionChunk,
    CompletionReply,
    DetokenizeReply,
    ErrorReply,
    ModelCard,
    ModelList,
    ReadyReply,
    TokenizeReply,
    VersionReply,
)
from twostep.tests.router.cluster import chat_body, events
from twostep.tests.router.front.http.app_in_memory import client_of_app

FOR_MACHINES = {"/metrics", "/openapi.json"}
NOT_SENT = {401, 403, 409, 499}
"""Statuses without a reader: nothing asks who a client is, conflicts are tried again, and 499 is for clients who left."""


async def document() -> dict[str, Any]:
    async with client_of_app() as client:
        reply = await client.get("/openapi.json")
        assert reply.headers["content-type"] == "application/json"
        told: dict[str, Any] = reply.json()
        return told


async def test_every_path_is_told_of() -> None:
    async with client_of_app() as client:
        app: Any = client._transport
        routes = {route.path.replace(":path", ""): route.methods - {"HEAD"} for route in app.app._app.routes}
    told = {
        path: {method.upper() for method in item if method != "parameters"}
        for path, item in (await document())["paths"].items()
    }
    assert told == {path: methods for path, methods in routes.items() if path not in FOR_MACHINES}


async def test_every_status_that_a_client_may_see_is_told_of() -> None:
    told = (await document())["components"]["responses"]
    assert {int(status) for status in told} == {known.http_status for known in error_classes().values()} - NOT_SENT


async def test_what_is_referred_to_is_there_and_no_type_of_ours_is_shown() -> None:
    whole = await document()
    schemas = whole["components"]["schemas"]
    referred = {part.split('"')[0] for part in json.dumps(whole).split("#/components/schemas/")[1:]}
    assert referred <= schemas.keys()
    assert "GivenPrompt" not in schemas


async def test_a_field_that_is_not_supported_is_told_of_with_the_values_that_ask_for_nothing() -> None:
    schemas = (await document())["components"]["schemas"]
    assert schemas["ChatRequest"]["properties"]["n"]["enum"] == [None, 1]
    assert schemas["CompletionRequest"]["properties"]["suffix"]["enum"] == [None]


SAID = {"max_tokens": 5, "bill": True}
POSTED: list[tuple[str, dict[str, Any], type[BaseModel]]] = [
    ("/v1/chat/completions", chat_body(**SAID), ChatReply),
    ("/v1/chat/completions", chat_body(n=2), ErrorReply),
    ("/v1/completions", {"prompt": ["a", "b"], **SAID}, CompletionReply),
    ("/tokenize", {"prompt": "a"}, TokenizeReply),
    ("/tokenize", chat_body(), TokenizeReply),
    ("/detokenize", {"tokens": [97]}, DetokenizeReply),
]
READ: list[tuple[str, type[BaseModel]]] = [
    ("/v1/models", ModelList),
    ("/v1/models/fake", ModelCard),
    ("/v1/models/none", ErrorReply),
    ("/v1/none", ErrorReply),
    ("/ready", ReadyReply),
    ("/version", VersionReply),
]


def check(reply: bytes | str, shape: type[BaseModel]) -> None:
    shape.model_validate_json(reply, strict=True, extra="forbid")


@pytest.mark.parametrize(("path", "body", "shape"), POSTED)
async def test_what_is_answered_has_exactly_the_shape_that_is_told(
    path: str, body: dict[str, Any], shape: type[BaseModel]
) -> None:
    async with client_of_app() as client:
        check((await client.post(path, json=body)).content, shape)


@pytest.mark.parametrize(("path", "shape"), READ)
async def test_pages_have_exactly_the_shape_that_is_told(path: str, shape: type[BaseModel]) -> None:
    async with client_of_app() as client:
        check((await client.get(path)).content, shape)


@pytest.mark.parametrize(
    ("path", "body", "shape"),
    [
        ("/v1/chat/completions", chat_body(**SAID), ChatChunk),
        ("/v1/completions", {"prompt": "a", "echo": True, **SAID}, CompletionChunk),
    ],
)
async def test_events_have_exactly_the_shape_that_is_told(path: str, body: dict[str, Any], shape: type[BaseModel]) -> None:
    async with client_of_app() as client:
        reply: httpx.Response = await client.post(
            path, json={**body, "stream": True, "stream_options": {"include_usage": True}}
        )
        *chunks, done = events(reply.text)
        assert (done, len(chunks) > 2) == ("[DONE]", True)
        for chunk in chunks:
            check(json.dumps(chunk), shape)
