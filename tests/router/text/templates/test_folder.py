"""Where a model folder keeps its chat templates, and which of several come first."""

from pathlib import Path
from typing import Any

import pytest

from twostep.core.errors import ConfigError
from twostep.router.text.templates.folder import read_template_set


def sources(folder: Path, settings: dict[str, Any], given: Path | None = None) -> dict[str, str]:
    return dict(read_template_set(folder, settings, given).sources)


def test_the_settings_hold_one_template_or_several(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    assert sources(tmp_path, {"chat_template": "a"}) == {"default": "a"}
    assert sources(tmp_path, {"chat_template": named}) == {"default": "a", "rag": "b"}
    assert sources(tmp_path, {"chat_template": {"default": "a", "rag": "b"}}) == {"default": "a", "rag": "b"}


def test_files_come_before_the_settings(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file")
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("tools")
    assert sources(tmp_path, {"chat_template": "a"}) == {"default": "file", "tool_use": "tools"}


def test_a_given_template_is_the_only_one(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file")
    given = tmp_path / "mine.jinja"
    given.write_text("mine")
    assert sources(tmp_path, {"chat_template": "a"}, given) == {"default": "mine"}


def test_every_token_that_has_a_name_reaches_the_template_as_text(tmp_path: Path) -> None:
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None, "image_token": "<i>"}
    given = read_template_set(tmp_path, {"chat_template": "a", "add_bos_token": True, **settings}, None)
    assert given.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<i>"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "the model has no chat template; give one with chat_template=FILE"),
        ({"chat_template": [{"name": "a"}]}, "chat_template: expected a name and a template, found {'name': 'a'}"),
    ],
)
def test_a_folder_without_a_usable_template_is_named(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        sources(tmp_path, settings)
    assert message in str(raised.value)


def test_a_given_template_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.jinja: cannot be read"):
        sources(tmp_path, {}, tmp_path / "missing.jinja")
