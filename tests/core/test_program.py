import asyncio
import json
import logging
import os
import signal
from pathlib import Path

import pytest

from twostep.core.config import config
from twostep.core.errors import ConfigError, EngineFault
from twostep.core.logging import JsonFormatter, TextFormatter
from twostep.core.program import run_program


@config
class Settings:
    port: int = 0


async def serve_nothing(settings: Settings, stop: asyncio.Event) -> None:
    """Return at once."""


def run(*argv: str, serve: object = serve_nothing) -> int:
    return run_program("demo_node", "A program.", Settings, serve, argv)  # type: ignore[arg-type]


def test_a_program_that_returns_exits_with_0() -> None:
    assert run("--set", "port=5") == 0


def test_the_program_gets_its_configuration(tmp_path: Path) -> None:
    seen = []

    async def serve(settings: Settings, stop: asyncio.Event) -> None:
        seen.append(settings)

    path = tmp_path / "demo.yaml"
    path.write_text("port: 1")
    assert run("--config", str(path), serve=serve) == 0
    assert run("--config", str(path), "--set", "port=2", serve=serve) == 0
    assert seen == [Settings(port=1), Settings(port=2)]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_the_program_to_stop(signum: signal.Signals) -> None:
    async def serve(settings: Settings, stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signum)
        await asyncio.wait_for(stop.wait(), timeout=5)

    assert run(serve=serve) == 0


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--set", "prot=1"], "demo_node: --set: unknown key prot (value 1), known here: port"),
        (
            ["--config", "absent.yaml"],
            "demo_node: absent.yaml: cannot be read: [Errno 2] No such file or directory: 'absent.yaml'",
        ),
        (["--port", "1"], "demo_node: unrecognized arguments: --port 1"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_line_and_exit_code_2(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) == 2
    assert capsys.readouterr().err == line + "\n"


def test_a_program_that_cannot_start_as_told_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(settings: Settings, stop: asyncio.Event) -> None:
        raise ConfigError("port 80 is taken")

    assert run(serve=serve) == 2
    assert capsys.readouterr().err == "demo_node: port 80 is taken\n"


def test_a_configuration_error_inside_a_task_group_ends_with_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail() -> None:
        raise ConfigError("port 80 is taken")

    async def serve(settings: Settings, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    assert run(serve=serve) == 2
    assert capsys.readouterr().err == "demo_node: port 80 is taken\n"


def test_a_fault_of_the_engine_ends_the_program_with_1_and_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(settings: Settings, stop: asyncio.Event) -> None:
        raise EngineFault("device lost")

    assert run(serve=serve) == 1
    assert capsys.readouterr().err == "demo_node: device lost\n"


def test_a_bug_is_not_hidden() -> None:
    async def serve(settings: Settings, stop: asyncio.Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(serve=serve)


def record(**extra: object) -> logging.LogRecord:
    return logging.getLogger("t").makeRecord("t", logging.INFO, "f.py", 1, "moved %d", (3,), None, extra=extra)


def test_a_json_line_holds_the_message_and_each_extra_field() -> None:
    line = json.loads(JsonFormatter("demo_node").format(record(request="req-1", bytes=5)))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "program": "demo_node",
        "logger": "t",
        "message": "moved 3",
        "request": "req-1",
        "bytes": 5,
    }


def test_a_text_line_ends_with_the_extra_fields() -> None:
    assert TextFormatter("demo_node").format(record(request="req-1")).endswith("demo_node INFO moved 3 request=req-1")
