import json
from io import StringIO
from typing import Any

import httpx
import pytest
from rich.console import Console

from twostep.cli.chat import Conversation
from twostep.cli.router_client import RouterClient


class Router:
    """Answers each question with the next of `answers`; an exception in one is raised in mid-answer."""

    def __init__(self, *answers: list[str | BaseException]) -> None:
        self._answers = list(answers)
        self.heard: list[list[dict[str, str]]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.heard.append(json.loads(request.content)["messages"])
        return httpx.Response(200, stream=Pieces(self._answers.pop(0)))


class Pieces(httpx.SyncByteStream):
    def __init__(self, pieces: list[str | BaseException]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Any:
        for piece in self._pieces:
            if isinstance(piece, BaseException):
                raise piece
            event = {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
            yield f"data: {json.dumps(event)}\n\n".encode()


def conversation(router: Router) -> tuple[Conversation, Console]:
    console = Console(record=True, file=StringIO(), width=80)
    client = RouterClient("http://router", transport=httpx.MockTransport(router))
    return Conversation(client, console, {}), console


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_each_question_carries_what_was_said_before() -> None:
    router = Router(["Hel", "lo"], ["Fine"])
    talk, console = conversation(router)
    talk.say("Hi")
    talk.say("How are you?")
    assert router.heard == [[user("Hi")], [user("Hi"), assistant("Hello"), user("How are you?")]]
    assert console.export_text() == "Hello\nFine\n"


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said() -> None:
    router = Router(["Once upon", KeyboardInterrupt()], ["Yes"])
    talk, console = conversation(router)
    talk.say("Tell me a story")
    talk.say("Is that all?")
    assert router.heard[1] == [user("Tell me a story"), assistant("Once upon"), user("Is that all?")]
    assert console.export_text() == "Once upon [stopped]\nYes\n"


def test_a_failed_question_is_told_and_forgotten() -> None:
    router = Router([httpx.ReadError("connection lost")], ["Hello"])
    talk, console = conversation(router)
    talk.say("Hi")
    talk.say("Hi again")
    assert router.heard[1] == [user("Hi again")]
    assert "connection lost" in console.export_text()


def test_brackets_in_an_answer_are_no_markup() -> None:
    talk, console = conversation(Router(["[bold]x[/bold]"]))
    talk.say("Hi")
    assert console.export_text() == "[bold]x[/bold]\n"


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_the_conversation_ends_at_the_prompt(end: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["Hi", "  ", end()])

    def ask(*_: object, **__: object) -> Any:
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return line

    router = Router(["Hello"])
    talk, console = conversation(router)
    monkeypatch.setattr(console, "input", ask)
    talk.run()
    assert router.heard == [[user("Hi")]]
