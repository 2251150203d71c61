"""Rebuilds a Hugging Face fast tokenizer from the vocabulary and merges inside a GGUF file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from twostep.core.errors import ConfigError

CONTROL_TOKEN = 3
"""GGUF's token type of special tokens; ordinary ones have type 1."""


def convert_tokenizer(gguf: Path, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, chat template included, of the model in `gguf` into `folder`.

    Raises ConfigError for a kind of tokenizer that is not known here: a near miss would mean other token ids, silently.
    """
    fields = {name: field.contents() for name, field in GGUFReader(gguf).fields.items()}
    build_tokenizer(fields).save(str(folder / "tokenizer.json"))
    text = json.dumps(_tokenizer_config(fields), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def build_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    """Return the byte-level BPE tokenizer that `fields` describe."""
    kind = (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise ConfigError(f"cannot convert a tokenizer of kind {'/'.join(kind)}: only gpt2/smollm is known")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _special_tokens(fields)])
    return tokenizer


def _special_tokens(fields: Mapping[str, Any]) -> list[str]:
    types = fields["tokenizer.ggml.token_type"]
    return [token for token, type_ in zip(fields["tokenizer.ggml.tokens"], types, strict=True) if type_ == CONTROL_TOKEN]


def _tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    def named(role: str) -> str:
        return str(fields["tokenizer.ggml.tokens"][fields[f"tokenizer.ggml.{role}_token_id"]])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": named("bos"),
        "eos_token": named("eos"),
        "pad_token": named("padding"),
        "unk_token": named("unknown"),
        "additional_special_tokens": _special_tokens(fields),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
    }
