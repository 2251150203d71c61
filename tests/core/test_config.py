from pathlib import Path
from typing import Literal

import pytest

from twostep.core.config import config, load
from twostep.core.errors import ConfigError


@config
class Engine:
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    block_tokens: int = 32

    def __post_init__(self) -> None:
        if self.block_tokens % 32:
            raise ValueError(f"block_tokens must be a multiple of 32, found {self.block_tokens}")


@config
class Program:
    port: int = 0
    peers: tuple[str, ...] = ()
    engine: Engine = Engine()
    spare: Engine | None = None


@config
class Needy:
    model: str


def written(folder: Path, text: str) -> Path:
    path = folder / "program.yaml"
    path.write_text(text)
    return path


def mistake(path: Path | None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(Program, path, overrides)
    return str(caught.value)


def test_the_file_fills_nested_sections_and_the_rest_keeps_its_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, "engine: {block_tokens: 64}\npeers: [a, b]\n")
    assert load(Program, path) == Program(peers=("a", "b"), engine=Engine(block_tokens=64))


def test_set_wins_over_the_file_and_the_last_set_wins(tmp_path: Path) -> None:
    path = written(tmp_path, "port: 1\n")
    assert load(Program, path, ["port=2", "port=3", "engine.dtype=float32"]) == Program(port=3, engine=Engine(dtype="float32"))


def test_an_empty_file_is_an_empty_configuration(tmp_path: Path) -> None:
    assert load(Program, written(tmp_path, "# nothing\n")) == Program()


def test_an_unknown_key_names_the_file_and_the_keys_that_are_known(tmp_path: Path) -> None:
    path = written(tmp_path, "prot: 80\n")
    assert mistake(path) == f"{path}: unknown key prot (value 80), known here: port, peers, engine, spare"


def test_an_unknown_nested_key_lists_the_keys_of_its_section(tmp_path: Path) -> None:
    path = written(tmp_path, "engine: {dtyp: float32}\n")
    assert mistake(path) == f"{path}: unknown key engine.dtyp (value 'float32'), known here: dtype, block_tokens"


def test_an_unknown_key_of_an_optional_section_lists_its_keys() -> None:
    assert mistake(None, "spare.x=1") == "--set: unknown key spare.x (value 1), known here: dtype, block_tokens"


def test_a_wrong_value_from_set_is_blamed_on_set_not_on_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "port: 1\n")
    assert mistake(path, "engine.dtype=int8") == ("--set: engine.dtype: Input should be 'float32' or 'bfloat16', found 'int8'")


def test_a_wrong_value_from_the_file_is_blamed_on_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "port: many\n")
    assert mistake(path, "engine.dtype=float32").startswith(f"{path}: port: Input should be a valid integer")


def test_a_rule_of_the_section_speaks_for_itself() -> None:
    assert mistake(None, "engine.block_tokens=33") == "--set: engine: block_tokens must be a multiple of 32, found 33"


def test_every_mistake_is_named_at_once() -> None:
    assert mistake(None, "port=x", "engine.dtype=y").count("--set: ") == 2


def test_a_missing_key_says_how_to_give_it() -> None:
    with pytest.raises(ConfigError, match=r"model is required: give it in the file of --config or as --set model=VALUE"):
        load(Needy)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("port", "expected KEY=VALUE"),
        ("=5", "expected KEY=VALUE"),
        ("engine..dtype=float32", "expected KEY=VALUE"),
        ("port=[", "not valid YAML"),
    ],
)
def test_a_malformed_override_is_refused_with_itself_in_the_message(override: str, reason: str) -> None:
    message = mistake(None, override)
    assert message.startswith(f"--set {override}: ")
    assert reason in message


def test_a_value_cannot_be_used_as_a_section() -> None:
    assert mistake(None, "port=5", "port.deep=1") == "--set port.deep=1: port is a value, not a section"


@pytest.mark.parametrize("text", ["[1, 2]", "just text", "a: [", "\ttab: 1"])
def test_a_file_that_is_no_mapping_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    message = mistake(path)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    assert mistake(tmp_path / "absent.yaml").startswith(f"{tmp_path}/absent.yaml: cannot be read: ")


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(AttributeError):
        load(Program).port = 5  # type: ignore[misc]
