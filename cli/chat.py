"""`twostep chat`: a conversation in the terminal."""

import argparse
from contextlib import closing
from typing import Any

from rich.console import Console

from twostep.cli.router_client import Answer, Message, RouterClient
from twostep.core.errors import ServingError


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("chat", help="talk to a running cluster")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the router's address (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="the longest answer, in tokens")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 always takes the most likely token")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Talk until Ctrl-D or Ctrl-C at the prompt; Ctrl-C during an answer ends that answer. Raises ServingError at the start."""
    given = {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature}
    options = {name: value for name, value in given.items() if value is not None}
    console = Console(highlight=False)
    with closing(RouterClient(arguments.url)) as client:
        hint = f"{client.model()} at {arguments.url}; Ctrl-C stops an answer, Ctrl-D ends"
        console.print(hint, style="dim", markup=False)
        Conversation(client, console, options).run()
    return 0


class Conversation:
    """Keeps what was said; a question that got no answer is forgotten."""

    def __init__(self, client: RouterClient, console: Console, options: dict[str, Any]) -> None:
        self._client = client
        self._console = console
        self._options = options
        self._messages: list[Message] = []

    def run(self) -> None:
        while (question := self._ask()) is not None:
            if question.strip():
                self.say(question)

    def say(self, question: str) -> None:
        """Send `question`, print the answer as it comes, and remember both."""
        asked: list[Message] = [*self._messages, {"role": "user", "content": question}]
        answer = Answer()
        try:
            self._print_pieces(asked, answer)
        except ServingError as error:
            self._console.print(f"\n{error}", style="red", markup=False)
        if answer.text:
            self._messages = [*asked, {"role": "assistant", "content": answer.text}]

    def _print_pieces(self, messages: list[Message], answer: Answer) -> None:
        with closing(self._client.stream(messages, answer, **self._options)) as pieces:
            try:
                for piece in pieces:
                    self._console.print(piece, end="", markup=False, soft_wrap=True)
                self._console.print()
            except KeyboardInterrupt:
                self._console.print(" [stopped]", style="dim", markup=False)

    def _ask(self) -> str | None:
        try:
            return self._console.input("[bold cyan]> [/bold cyan]")
        except (EOFError, KeyboardInterrupt):
            self._console.print()
            return None
