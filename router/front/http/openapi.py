"""The OpenAPI 3.1 document of the HTTP door, written from the types that requests are read with."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from twostep.core.errors import error_classes
from twostep.router.front.http import tokenization
from twostep.router.front.http.tokenization import TextToTokenize, TokensToDetokenize
from twostep.router.front.openai import reply_shapes as shapes
from twostep.router.front.openai.chat_request import CHAT_NEUTRAL, ChatRequest
from twostep.router.front.openai.completion_request import COMPLETION_NEUTRAL, CompletionRequest
from twostep.router.front.openai.event import DONE_DATA, Json
from twostep.router.front.openai.neutral import Neutral

Shape = type[BaseModel]

SCHEMA = "#/components/schemas/{model}"
REQUESTS: Mapping[Shape, Neutral] = {
    ChatRequest: CHAT_NEUTRAL,
    CompletionRequest: COMPLETION_NEUTRAL,
    TextToTokenize: tokenization.NEUTRAL,
    TokensToDetokenize: {},
}
REPLIES: Sequence[Shape] = (
    *(shapes.ErrorReply, shapes.ChatReply, shapes.ChatChunk, shapes.CompletionReply, shapes.CompletionChunk),
    *(shapes.TokenizeReply, shapes.DetokenizeReply, shapes.ModelList, shapes.ModelCard),
    *(shapes.HealthReply, shapes.ReadyReply, shapes.VersionReply, shapes.ExplanationReply),
)

ANYWHERE = (400, 408, 431, 500)
"""What even a small page may be answered with: the request is no HTTP, too slow or too large, or the fault is ours."""
POSTED = (400, 404, 408, 413, 429, 431, 500, 503, 504)
RETRY_LATER = frozenset({429, 503})

REQUEST_ID = {
    "name": "x-request-id",
    "in": "header",
    "description": "The client's own name for the request; one that is not up to 128 letters, digits and ._:/+=@- is replaced",
    "schema": {"type": "string"},
}
IN_PATH = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
REQUEST_NAME = {"description": "The request's name, the client's own or a minted one", "schema": {"type": "string"}}
RETRY_AFTER = {"description": "After how many seconds to come back", "schema": {"type": "string"}}


@cache
def openapi_json(version: str) -> bytes:
    """Return the document of a router of this version."""
    return json.dumps(_document(version)).encode()


def _document(version: str) -> Json:
    return {
        "openapi": "3.1.0",
        "info": {"title": "twostep", "version": version, "description": "Fields that are not listed are ignored."},
        "paths": _paths(),
        "components": {"schemas": _schemas(), "responses": {str(status): _error(status) for status in POSTED}},
    }


def _paths() -> Json:
    tokenize: Json = {"anyOf": [_ref(TextToTokenize), _ref(ChatRequest)]}
    return {
        "/v1/chat/completions": _posted("Continue a conversation", _ref(ChatRequest), shapes.ChatReply, shapes.ChatChunk),
        "/v1/completions": _posted("Continue texts", _ref(CompletionRequest), shapes.CompletionReply, shapes.CompletionChunk),
        "/tokenize": _posted("The tokens of a text or of a conversation", tokenize, shapes.TokenizeReply),
        "/detokenize": _posted("The text of tokens", _ref(TokensToDetokenize), shapes.DetokenizeReply),
        "/v1/models": _page("The models that are served", {200: shapes.ModelList}),
        "/v1/models/{name}": {
            **_page("One model", {200: shapes.ModelCard, 404: shapes.ErrorReply}),
            "parameters": [IN_PATH],
        },
        "/requests/{name}": {
            **_page("Why a request was served as it was", {200: shapes.ExplanationReply, 404: shapes.ErrorReply}),
            "parameters": [IN_PATH],
        },
        "/health": _page("Whether the process lives", {200: shapes.HealthReply}),
        "/ready": _page("Whether requests can be served, and by which nodes", {200: shapes.ReadyReply, 503: shapes.ReadyReply}),
        "/version": _page("The router's version", {200: shapes.VersionReply}),
    }


def _posted(summary: str, body: Json, reply: Shape, chunk: Shape | None = None) -> Json:
    answer = _reply("The answer", reply)
    if chunk:
        answer["content"]["text/event-stream"] = {"schema": _event(chunk)}
    request = {"required": True, "content": {"application/json": {"schema": body}}}
    responses = {"200": answer, **_errors(POSTED)}
    return {"post": {"summary": summary, "parameters": [REQUEST_ID], "requestBody": request, "responses": responses}}


def _event(chunk: Shape) -> Json:
    data = {"contentMediaType": "application/json", "contentSchema": {"anyOf": [_ref(chunk), _ref(shapes.ErrorReply)]}}
    return {
        "description": "One event of a reply with `stream`",
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"anyOf": [{"const": DONE_DATA}, {"type": "string", **data}]}},
    }


def _page(summary: str, replies: Mapping[int, Shape]) -> Json:
    responses = {str(status): _reply(HTTPStatus(status).phrase, shape) for status, shape in replies.items()}
    return {"get": {"summary": summary, "parameters": [REQUEST_ID], "responses": {**responses, **_errors(ANYWHERE)}}}


def _errors(statuses: Iterable[int]) -> Json:
    return {str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses}


def _error(status: int) -> Json:
    codes = sorted(code for code, known in error_classes().items() if known.http_status == status)
    response = _reply(f"`code` is one of {', '.join(codes)}", shapes.ErrorReply)
    if status in RETRY_LATER:
        response["headers"]["retry-after"] = RETRY_AFTER
    return response


def _reply(description: str, shape: Shape) -> Json:
    content = {"application/json": {"schema": _ref(shape)}}
    return {"description": description, "headers": {"x-request-id": REQUEST_NAME}, "content": content}


def _ref(shape: Shape) -> Json:
    return {"$ref": SCHEMA.format(model=shape.__name__)}


def _schemas() -> Json:
    schemas: Json = {}
    for shape in (*REQUESTS, *REPLIES):
        written = shape.model_json_schema(ref_template=SCHEMA)
        schemas |= {**written.pop("$defs", {}), shape.__name__: written}
    for shape, neutral in REQUESTS.items():
        properties = schemas[shape.__name__]["properties"]
        properties.update({name: _neutral(accepted) for name, accepted in neutral.items() if name not in properties})
    return schemas


def _neutral(accepted: Sequence[Any]) -> Json:
    return {"description": "Not supported: any other value is refused", "enum": [None, *accepted]}
