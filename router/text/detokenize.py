"""Turns tokens into text one at a time, never splitting a character."""

import codecs
from typing import Protocol

from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.decoders import DecodeStream


class Detokenizer(Protocol):
    """The text of one answer as its tokens come; the pieces add up to the text of the whole."""

    def feed(self, token: int) -> str: ...

    def flush(self) -> str:
        """Return what incomplete characters at the very end look like."""


class StreamDetokenizer:
    """Detokenizes with a Hugging Face tokenizer; special tokens have no text."""

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokens: list[int] = []
        self._num_shown = 0
        self._is_undecided = False

    def feed(self, token: int) -> str:
        self._tokens.append(token)
        text: str | None = self._stream.step(self._tokenizer, token)
        self._is_undecided = text is None
        self._num_shown += len(text or "")
        return text or ""

    def flush(self) -> str:
        if not self._is_undecided:
            return ""
        whole: str = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        rest, self._is_undecided = whole[self._num_shown :], False
        return rest


class ByteDetokenizer:
    """Tokens below 256 are the bytes of UTF-8 text; any other is shown as its number."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        if token < 256:
            return self._decoder.decode(bytes([token]))
        return f"{self.flush()}<{token}>"

    def flush(self) -> str:
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
