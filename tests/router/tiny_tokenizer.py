"""A real Hugging Face tokenizer, small enough to be made in a test: byte-level BPE, so that characters span tokens."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level_tokenizer() -> Tokenizer:
    """Return a tokenizer whose ids 0 to 255 are the bytes' characters in sorted order, then one merge and two specials."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: number for number, character in enumerate(alphabet)}
    vocab["he"] = len(vocab)
    tokenizer = Tokenizer(BPE(vocab, [("h", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    return tokenizer


def write_folder(folder: Path, *, settings: dict[str, Any] | None = None, generation: dict[str, Any] | None = None) -> Path:
    """Write a model folder's tokenizer files and return the folder."""
    folder.mkdir(exist_ok=True)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    given = {"chat_template": CHATML, "eos_token": "<|im_end|>"} if settings is None else settings
    (folder / "tokenizer_config.json").write_text(json.dumps(given))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder
