"""What is read of a model folder, and what is said of a broken one."""

import json
from pathlib import Path
from typing import Any

import pytest

from twostep.core.errors import ConfigError, InvalidRequest
from twostep.router.chat_template import ChatTemplate
from twostep.router.tokenizer import ByteTokenizer, FolderTokenizer, load_tokenizer
from twostep.tests.router.tiny_tokenizer import CHATML, byte_level_tokenizer, write_folder

HI = [{"role": "user", "content": "he😀"}]


def rendered(source: str, messages: list[dict[str, Any]] = HI) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}, origin="test").render(messages)


def test_a_folder_gives_template_tokens_and_text_back(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(write_folder(tmp_path)))
    text = tokenizer.render(HI)
    assert text == "<|im_start|>user\nhe😀<|im_end|>\n<|im_start|>assistant\n"
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


def test_the_templates_own_file_comes_before_the_settings(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert FolderTokenizer(write_folder(tmp_path)).render(HI) == "from the file"


def test_a_given_template_comes_before_the_models_own(tmp_path: Path) -> None:
    given = tmp_path / "mine.jinja"
    given.write_text("mine")
    assert FolderTokenizer(write_folder(tmp_path / "model"), given).render(HI) == "mine"


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    assert FolderTokenizer(write_folder(tmp_path, settings={"chat_template": named})).render(HI) == "yes"


def test_special_tokens_reach_the_template_as_text(tmp_path: Path) -> None:
    settings = {"chat_template": "{{ bos_token }}|{{ eos_token }}", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    assert FolderTokenizer(write_folder(tmp_path, settings=settings)).render(HI) == "<s>|</s>"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "tokenizer.json: no such file"),
        ({"tokenizer.json": "{"}, "tokenizer.json: not a tokenizer"),
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json: cannot be read"),
        ({"tokenizer_config.json": "[]"}, "tokenizer_config.json: expected a JSON object, found list"),
        ({"tokenizer_config.json": "{}"}, "the model has no chat template; give one with chat_template=FILE"),
        ({"chat_template.jinja": "{% if %}"}, "the chat template does not compile: line 1"),
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
    assert tokenizer.render(HI) == "user: he😀\nassistant:"


def test_templates_have_what_transformers_gives_them() -> None:
    assert rendered("{{ bos_token }}{{ messages | tojson }}") == "<s>" + json.dumps(HI, ensure_ascii=False)
    assert rendered("{% for m in messages %}\n  {% if true %}\nx{% break %}\n{% endif %}\n{% endfor %}") == "x"
    assert rendered("{% generation %}a{% endgeneration %}b") == "ab"
    assert len(rendered("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert rendered("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}") == "2"
    assert rendered("{{ tools is none }}") == "True"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "the model's chat template refused them: roles must alternate"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{% set x = messages.append(1) %}", "access to attribute 'append' of 'list' object is unsafe"),
    ],
)
def test_a_template_that_fails_is_the_requests_fault(source: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        rendered(source)
    assert message in raised.value.message
    assert raised.value.param == "messages"
