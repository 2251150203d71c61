from importlib.metadata import version
from pathlib import Path

import pytest

from twostep.cli.main import main


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["up", "--model", "absent"], "model 'absent' is neither a folder nor in the catalogue (smollm2)"),
        (["up", "--set", "nonsense"], "--set nonsense: expected KEY=VALUE with a dotted key, such as engine.dtype=float32"),
        (["up", "--prefil", "2"], "unrecognized arguments: --prefil 2"),
        (["models", "pull", "gpt-5"], "unknown model 'gpt-5': the catalogue has smollm2"),
    ],
)
def test_an_impossible_command_is_one_line_and_exit_code_2(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err == f"twostep: {line}\n"


def test_a_model_that_was_never_pulled_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["up"]) == 2
    expected = "twostep: model smollm2 is not on this machine yet: run `twostep models pull smollm2`\n"
    assert capsys.readouterr().err == expected


@pytest.mark.processes
def test_a_router_or_node_that_is_not_there_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", "http://127.0.0.1:9"]) == 1
    assert main(["ledger", "127.0.0.1:9"]) == 1
    chat, ledger = capsys.readouterr().err.splitlines()
    assert chat.startswith("twostep: no answer from http://127.0.0.1:9 (")
    assert ledger.startswith("twostep: 127.0.0.1:9: UNAVAILABLE: ")


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"twostep {version('twostep')}\n"
