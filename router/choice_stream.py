"""Writes one choice of a streamed reply: several may share the stream, each with its own index."""

from collections.abc import Sequence

from twostep.router.event_stream import EventStream
from twostep.router.openai.reply import Choice, ReplyWriter
from twostep.router.transcript import Piece


class ChoiceStream:
    """One event for each token that lets text be shown."""

    def __init__(self, index: int, echo: str, writer: ReplyWriter, stream: EventStream) -> None:
        self._index = index
        self._echo = echo
        self._writer = writer
        self._stream = stream
        self._has_opened = False

    async def write(self, pieces: Sequence[Piece]) -> None:
        texts = b"".join(self._writer.text(self._index, piece.text) for piece in pieces if piece.text)
        if events := self._opening() + texts:
            await self._stream.write(events)

    async def finish(self, choice: Choice, rest: str) -> None:
        """Write `rest`, the text held back so far, and the reason why the choice ends."""
        text = self._writer.text(self._index, rest) if rest else b""
        await self._stream.write(self._opening() + text + self._writer.finish(choice))

    def _opening(self) -> bytes:
        if self._has_opened:
            return b""
        self._has_opened = True
        return self._writer.opening(self._index, self._echo)
