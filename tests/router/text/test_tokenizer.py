"""What is read of a model folder, and what is said of a broken one."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from twostep.core.errors import ConfigError
from twostep.router.front.model import ServedModel
from twostep.router.front.openai.accept import ModelLimits
from twostep.router.text.templates.conversation import Conversation
from twostep.router.text.templates.template import ChatTemplates
from twostep.router.text.tokenizer import ByteTokenizer, FolderTokenizer, load_tokenizer
from twostep.tests.router.tiny_tokenizer import CHATML, byte_level_tokenizer, write_folder


def test_a_folder_gives_tokens_and_text_back(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_folder(tmp_path)))
    text = "<|im_start|>user\nhe😀<|im_end|>\n<|im_start|>assistant\n"
    tokens = tokenizer.encode(text)
    assert tokens == tuple(byte_level_tokenizer().encode(text).ids)
    detokenizer = tokenizer.detokenizer()
    assert "".join(map(detokenizer.feed, tokens)) == "user\nhe😀\nassistant\n"


def test_every_token_that_ends_an_answer_is_known(tmp_path: Path) -> None:
    im_end = byte_level_tokenizer().token_to_id("<|im_end|>")
    assert FolderTokenizer(write_folder(tmp_path)).eos_ids == {im_end}
    assert FolderTokenizer(write_folder(tmp_path, generation={"eos_token_id": 5})).eos_ids == {5, im_end}
    assert FolderTokenizer(write_folder(tmp_path, generation={"eos_token_id": [5, 6]})).eos_ids == {5, 6, im_end}


def test_the_models_own_settings_tell_the_eos_where_no_others_do(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert FolderTokenizer(write_folder(tmp_path, settings={"chat_template": CHATML})).eos_ids == {7}


def test_several_tokens_of_the_models_own_settings_may_end_an_answer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": [7, 9]}')
    assert FolderTokenizer(write_folder(tmp_path, settings={"chat_template": CHATML})).eos_ids == {7, 9}


@pytest.mark.parametrize("settings", [{}, {"add_bos_token": True}, {"add_bos_token": False, "add_eos_token": True}])
@pytest.mark.parametrize("has_bos", [True, False])
def test_tokenizer_json_alone_says_what_is_added_to_a_text(has_bos: bool, settings: dict[str, Any], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, settings={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", **settings})
    if has_bos:
        add_bos(folder)
    tokens = FolderTokenizer(folder).encode("hey", add_special_tokens=True)
    assert list(tokens) == AutoTokenizer.from_pretrained(folder)("hey").input_ids
    assert (tokens[0] == byte_level_tokenizer().token_to_id("<|im_start|>")) is has_bos


async def test_a_conversation_whose_template_prints_the_bos_begins_with_one(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(add_bos(write_folder(tmp_path)))
    template = ChatTemplates({"default": "{{ bos_token }}{{ messages[0].content }}"}, {"bos_token": "<|im_start|>"})
    model = ServedModel(["m"], "", tokenizer, AtOnce(template), lambda: ModelLimits(100, 300))
    assert tokenizer.decode(await model.encode(Conversation([{"role": "user", "content": "hey"}]))) == "<|im_start|>hey"
    assert tokenizer.decode(await model.encode_text("hey", add_special_tokens=True)) == "<|im_start|>hey"


class AtOnce:
    def __init__(self, templates: ChatTemplates) -> None:
        self._templates = templates

    async def render(self, conversation: Conversation) -> str:
        return self._templates.render(conversation)


def add_bos(folder: Path) -> Path:
    """Let the folder's tokenizer put its BOS before a text, as those of Llama and Gemma do."""
    tokenizer = byte_level_tokenizer()
    bos = ("<|im_start|>", tokenizer.token_to_id("<|im_start|>"))
    tokenizer.post_processor = TemplateProcessing(single=[bos[0], "$A"], special_tokens=[bos])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "tokenizer.json: no such file"),
        ({"tokenizer.json": "{"}, "tokenizer.json: not a tokenizer"),
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json: cannot be read"),
        ({"tokenizer_config.json": "[]"}, "tokenizer_config.json: expected a JSON object, found list"),
        ({"generation_config.json": '{"eos_token_id": "x"}'}, "generation_config.json: eos_token_id: expected a token id"),
        ({"generation_config.json": '{"eos_token_id": [1, 2.5]}'}, "generation_config.json: eos_token_id: expected a token id"),
        ({"config.json": '{"eos_token_id": -1}'}, "config.json: eos_token_id: expected a token id"),
    ],
)
def test_a_broken_folder_is_named(tmp_path: Path, files: dict[str, str], message: str) -> None:
    if files:
        write_folder(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as raised:
        load_tokenizer(str(tmp_path))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="expected a model folder in Hugging Face format or `fake`, found 'nowhere'"):
        load_tokenizer("nowhere")


def test_the_fake_model_needs_no_folder() -> None:
    tokenizer = load_tokenizer("fake")
    assert isinstance(tokenizer, ByteTokenizer)
    assert tokenizer.encode("é") == (0xC3, 0xA9)
    assert tokenizer.eos_ids == {0}


def test_the_fake_models_eos_can_be_told() -> None:
    assert load_tokenizer("fake:step_s=0.1,eos_id=5").eos_ids == {5}
    with pytest.raises(ConfigError, match="model fake: eos_id: expected a token id, found 'x'"):
        load_tokenizer("fake:eos_id=x")
