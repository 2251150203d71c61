"""Writes one choice of a streamed reply: several may share the stream, each with its own index."""

from collections.abc import Sequence

from twostep.router.front.http.event_stream import EventStream
from twostep.router.front.openai.reply import Choice, ReplyWriter
from twostep.router.text.transcript import Piece


class ChoiceStream:
    """A PieceSink: one event for each token that lets text be shown."""

    def __init__(self, index: int, echo: str, writer: ReplyWriter, stream: EventStream) -> None:
        self._index = index
        self._echo = echo
        self._writer = writer
        self._texts = writer.texts(index)
        self._stream = stream
        self._has_opened = False

    def put(self, pieces: Sequence[Piece]) -> bool:
        events = b"" if self._has_opened else self._opening()
        for _, text in pieces:
            if text:
                events += self._texts.filled(text)
        return self._stream.put(events) if events else True

    async def settle(self) -> None:
        await self._stream.settle()

    async def finish(self, choice: Choice, rest: str) -> None:
        """Write `rest`, the text held back so far, and the reason why the choice ends."""
        text = self._texts.filled(rest) if rest else b""
        opening = b"" if self._has_opened else self._opening()
        self._stream.put(opening + text + self._writer.finish(choice))
        await self._stream.settle()

    def _opening(self) -> bytes:
        self._has_opened = True
        return self._writer.opening(self._index, self._echo)
