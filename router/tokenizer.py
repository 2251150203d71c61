"""Text to tokens: a model folder's tokenizer and chat template, or a built-in one for the fake model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as HuggingFaceTokenizer

from twostep.core.errors import ConfigError
from twostep.router.chat_template import ChatTemplate, Message
from twostep.router.detokenize import ByteDetokenizer, Detokenizer, StreamDetokenizer

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer(Protocol):
    """What the router needs of a model: its words, and which of its tokens end an answer."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def vocab_size(self) -> int: ...

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt's text. Raises InvalidRequest when the chat template refuses the messages."""

    def encode(self, text: str) -> tuple[int, ...]: ...

    def detokenizer(self) -> Detokenizer: ...


class FolderTokenizer:
    """Reads tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json of a folder."""

    def __init__(self, folder: Path, chat_template: Path | None = None) -> None:
        self._tokenizer = _read_tokenizer(folder / "tokenizer.json")
        settings = _read_json(folder / "tokenizer_config.json")
        special_tokens = _special_tokens(settings)
        self._template = ChatTemplate(_template_source(folder, settings, chat_template), special_tokens, origin=str(folder))
        self.eos_ids = _eos_ids(folder, self._tokenizer, special_tokens)
        self.vocab_size: int = self._tokenizer.get_vocab_size()

    def render(self, messages: Sequence[Message]) -> str:
        return self._template.render(messages)

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def detokenizer(self) -> Detokenizer:
        return StreamDetokenizer(self._tokenizer)


class ByteTokenizer:
    """For the fake model: a token is a byte of UTF-8 and 0 ends an answer. No model folder is needed."""

    eos_ids = frozenset({0})
    vocab_size = 256

    def render(self, messages: Sequence[Message]) -> str:
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant:"

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def detokenizer(self) -> Detokenizer:
        return ByteDetokenizer()


def load_tokenizer(model: str, chat_template: Path | None = None) -> Tokenizer:
    """Return the tokenizer of `model`, a folder or `fake`. Raises ConfigError that says what is wrong with the folder."""
    if model.partition(":")[0] == "fake":
        return ByteTokenizer()
    folder = Path(model).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"model: expected a model folder in Hugging Face format or `fake`, found {model!r}")
    return FolderTokenizer(folder, chat_template)


def _read_tokenizer(path: Path) -> HuggingFaceTokenizer:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; a model folder must hold a tokenizer.json")
    try:
        return HuggingFaceTokenizer.from_file(str(path))
    except Exception as cause:  # the library raises nothing narrower
        raise ConfigError(f"{path}: not a tokenizer: {' '.join(str(cause).split())}") from cause


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise ConfigError(f"{path}: cannot be read: {cause}") from cause
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(values).__name__}")
    return values


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    named = {name: settings.get(name) for name in SPECIAL_TOKENS}
    texts = {name: value["content"] if isinstance(value, dict) else value for name, value in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _template_source(folder: Path, settings: Mapping[str, Any], chat_template: Path | None) -> str:
    path = chat_template or folder / "chat_template.jinja"
    if chat_template or path.is_file():
        return _read_text(path)
    source = settings.get("chat_template")
    if isinstance(source, list):
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if not isinstance(source, str):
        raise ConfigError(f"{folder}: the model has no chat template; give one with chat_template=FILE")
    return source


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path}: cannot be read: {cause}") from cause


def _eos_ids(folder: Path, tokenizer: HuggingFaceTokenizer, special_tokens: Mapping[str, str]) -> frozenset[int]:
    """Return every token that ends an answer: those of the generation settings and the tokenizer's own."""
    told = _read_json(folder / "generation_config.json").get("eos_token_id")
    if told is None:
        told = _read_json(folder / "config.json").get("eos_token_id")
    ids = {told} if isinstance(told, int) else set(told or ())
    own: int | None = tokenizer.token_to_id(special_tokens["eos_token"]) if "eos_token" in special_tokens else None
    return frozenset(ids if own is None else ids | {own})
