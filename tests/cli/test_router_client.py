import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from twostep.cli.router_client import Answer, RouterClient
from twostep.core.errors import NodeUnavailable, QueueFull, ServingError

QUESTION = [{"role": "user", "content": "Hello?"}]


def client_of(handler: Callable[[httpx.Request], httpx.Response]) -> RouterClient:
    return RouterClient("http://router", transport=httpx.MockTransport(handler))


def delta(text: str, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def events(*bodies: object) -> httpx.Response:
    lines = [f"data: {json.dumps(body)}\n\n" for body in bodies]
    return httpx.Response(200, text="".join([*lines, "data: [DONE]\n\n"]), headers={"content-type": "text/event-stream"})


def test_pieces_come_one_by_one_and_the_answer_keeps_all() -> None:
    usage, bill = {"completion_tokens": 2}, {"queue": 0.1}
    stream = events(delta(""), delta("Hel"), delta("lo", "stop"), {"choices": [], "usage": usage, "bill": bill})
    answer = Answer()
    assert list(client_of(lambda _: stream).stream(QUESTION, answer)) == ["Hel", "lo"]
    assert answer == Answer("Hello", "stop", usage, bill)


def test_the_question_is_sent_as_a_stream_with_its_options() -> None:
    sent = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append((request.url.path, json.loads(request.content)))
        return events()

    list(client_of(handler).stream(QUESTION, Answer(), temperature=0))
    body = {"messages": QUESTION, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    assert sent == [("/v1/chat/completions", body)]


def test_a_refusal_is_the_error_that_the_router_raised() -> None:
    refusal = {"error": {"message": "64 requests wait", "type": "rate_limit_error", "param": None, "code": "queue_full"}}
    with pytest.raises(QueueFull, match=r"^64 requests wait$"):
        list(client_of(lambda _: httpx.Response(429, json=refusal)).stream(QUESTION, Answer()))


def test_an_error_in_mid_stream_ends_it_and_keeps_what_came() -> None:
    error = {"error": {"message": "decode-0 is gone", "type": "server_error", "param": None, "code": "node_unavailable"}}
    answer = Answer()
    with pytest.raises(NodeUnavailable, match=r"^decode-0 is gone$"):
        list(client_of(lambda _: events(delta("Hel"), error)).stream(QUESTION, answer))
    assert answer.text == "Hel"


def test_a_router_that_dies_in_mid_stream_breaks_its_answer_off() -> None:
    def half() -> Iterator[bytes]:
        yield f"data: {json.dumps(delta('Hel'))}\n\n".encode()
        raise httpx.RemoteProtocolError("connection closed")

    answer = Answer()
    with pytest.raises(NodeUnavailable, match=r"^the answer from http://router broke off \(connection closed\)$"):
        list(client_of(lambda _: httpx.Response(200, content=half())).stream(QUESTION, answer))
    assert answer.text == "Hel"


def test_something_else_on_that_port_is_quoted() -> None:
    with pytest.raises(ServingError, match="http://router/v1/models answered 404: not here"):
        client_of(lambda _: httpx.Response(404, text="not here")).model()


def test_a_router_that_is_not_there_says_what_to_do() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    with pytest.raises(NodeUnavailable) as caught:
        client_of(refuse).model()
    assert str(caught.value) == "no answer from http://router (Connection refused): is `twostep up` running there?"


def test_the_served_model_is_known() -> None:
    models = {"object": "list", "data": [{"id": "smollm2"}]}
    assert client_of(lambda _: httpx.Response(200, json=models)).model() == "smollm2"
