"""A tokenizer rebuilt from a GGUF gives the same ids as the one it was made from."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from twostep.cli.model_store.gguf_tokenizer import build_tokenizer, convert_tokenizer
from twostep.core.errors import ConfigError
from twostep.tests.engine.tiny_gguf import CHAT_TEMPLATE, SPECIAL, train_tokenizer, write_gguf
from twostep.tests.engine.tiny_llama import write_tiny_llama

CORPUS = ["The capital of France is Paris.", "def f(x):\n    return x ** 2\n", "It's 1234, isn't it? Ünïcödé, 你好"] * 3
TEXTS = [
    *CORPUS,
    "12345 and 6789",
    "<|im_start|>user\nhello there<|im_end|>\n",
    "a<|im_end|><|im_end|> b",
    "  leading and   many \t\n\n spaces ",
    "emoji 🎉 and \x00 control",
    "",
]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train_tokenizer(400, CORPUS)


@pytest.fixture(scope="module")
def folder(trained: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converted")
    write_gguf(path / "m.gguf", write_tiny_llama(path / "m", vocab_size=400), trained)
    convert_tokenizer(path / "m.gguf", path)
    return path


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_are_those_of_the_original(text: str, trained: Tokenizer, folder: Path) -> None:
    rebuilt = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = trained.encode(text).ids
    assert rebuilt.encode(text).ids == ids
    assert rebuilt.decode(ids, skip_special_tokens=False) == text


def test_transformers_loads_it_with_its_roles_and_chat_template(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert set(SPECIAL) <= set(tokenizer.all_special_tokens)
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == 1024


def test_another_kind_of_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot convert a tokenizer of kind gpt2/qwen2: only gpt2/smollm is known"):
        build_tokenizer({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"})
