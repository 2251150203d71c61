"""Text to tokens: a model folder's tokenizer, or a built-in one for the fake model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer as HuggingFaceTokenizer

from twostep.core.errors import ConfigError
from twostep.router.text.detokenize import ByteDetokenizer, Detokenizer, StreamDetokenizer
from twostep.router.text.model_folder import is_fake, model_folder, read_json
from twostep.router.text.piecewise import LONG_CHARACTERS, Pieces, may_be_cut
from twostep.router.text.templates.folder import special_tokens
from twostep.router.text.words import words_of


class Tokenizer(Protocol):
    """What the router needs of a model: its words, and which of its tokens end an answer."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def vocab_size(self) -> int:
        """One more than the highest token."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> tuple[int, ...]:
        """Return the text's tokens; special ones, such as a BOS, are added where the model has them and they are wanted."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, special ones included."""

    def detokenizer(self) -> Detokenizer: ...


class FolderTokenizer:
    """Reads tokenizer.json, tokenizer_config.json and generation_config.json of a folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = _read_tokenizer(folder / "tokenizer.json")
        settings = read_json(folder / "tokenizer_config.json")
        self.eos_ids = _eos_ids(folder, self._tokenizer, special_tokens(settings))
        self.vocab_size: int = 1 + max(self._tokenizer.get_vocab().values())
        told = dict(read_json(folder / "tokenizer.json"))
        words = words_of(self._tokenizer, told, self._encode_whole)
        self._encode = words.encode if words else self._encode_whole
        self._pieces = Pieces(self._encode) if may_be_cut(self._tokenizer, told) else None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> tuple[int, ...]:
        if add_special_tokens:
            return tuple(self._encode_whole(text, add_special_tokens=True))
        if self._pieces is None or len(text) < LONG_CHARACTERS:
            return tuple(self._encode(text))
        return self._pieces.encode(text)

    def _encode_whole(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        # `encode` holds the interpreter's lock all the while, seconds for a long text; the batch call lets go of it.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def detokenizer(self) -> Detokenizer:
        return StreamDetokenizer(self._tokenizer)


class ByteTokenizer:
    """For the fake model: a token is a byte of UTF-8. No model folder is needed."""

    vocab_size = 256

    def __init__(self, eos_id: int = 0) -> None:
        self.eos_ids = frozenset({eos_id})

    def encode(self, text: str, *, add_special_tokens: bool = False) -> tuple[int, ...]:  # noqa: ARG002 - has none
        return tuple(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        detokenizer = self.detokenizer()
        return "".join(detokenizer.feed(token) for token in tokens) + detokenizer.flush()

    def detokenizer(self) -> Detokenizer:
        return ByteDetokenizer()


def load_tokenizer(model: str) -> Tokenizer:
    """Return the tokenizer of `model`, a folder or `fake`. Raises ConfigError that says what is wrong with the folder."""
    if is_fake(model):
        return ByteTokenizer(_fake_eos_id(model))
    return FolderTokenizer(model_folder(model))


def _fake_eos_id(model: str) -> int:
    """Return what the knobs in `fake:key=value,...` say of its EOS; all else in them is the nodes' business."""
    told = dict(knob.partition("=")[::2] for knob in model.partition(":")[2].split(","))
    eos_id = told.get("eos_id", "0")
    if not eos_id.isdigit():
        raise ConfigError(f"model fake: eos_id: expected a token id, found {eos_id!r}")
    return int(eos_id)


def _read_tokenizer(path: Path) -> HuggingFaceTokenizer:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; a model folder must hold a tokenizer.json")
    try:
        return HuggingFaceTokenizer.from_file(str(path))
    except Exception as cause:  # the library raises nothing narrower
        raise ConfigError(f"{path}: not a tokenizer: {' '.join(str(cause).split())}") from cause


def _eos_ids(folder: Path, tokenizer: HuggingFaceTokenizer, named: Mapping[str, str]) -> frozenset[int]:
    """Return every token that ends an answer: those of the generation settings and the tokenizer's own."""
    ids = _eos_ids_in(folder / "generation_config.json") or _eos_ids_in(folder / "config.json")
    own: int | None = tokenizer.token_to_id(named["eos_token"]) if "eos_token" in named else None
    return frozenset(ids if own is None else ids | {own})


def _eos_ids_in(path: Path) -> frozenset[int]:
    told = read_json(path).get("eos_token_id")
    ids = told if isinstance(told, list) else [] if told is None else [told]
    if any(type(token) is not int or token < 0 for token in ids):
        raise ConfigError(f"{path}: eos_token_id: expected a token id or a list of token ids, found {told!r}")
    return frozenset(ids)
