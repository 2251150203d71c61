"""What a log line carries beside its message."""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from twostep.core.logging import JsonFormatter, TextFormatter, about_request, logging_options, set_up_logging, sign_lines


def line(**extra: Any) -> dict[str, Any]:
    record = logging.makeLogRecord({"msg": "said", "levelname": "INFO", "name": "here", **extra})
    parsed: dict[str, Any] = json.loads(JsonFormatter("router").format(record))
    return parsed


def test_extra_fields_become_keys() -> None:
    assert {key: line(node="d0")[key] for key in ("message", "level", "program", "node")} == {
        "message": "said",
        "level": "info",
        "program": "router",
        "node": "d0",
    }


def test_a_line_about_a_request_carries_its_id_until_the_block_ends() -> None:
    with about_request("req-1"):
        assert line()["request"] == "req-1"
        with about_request("req-1-0"):
            assert line()["request"] == "req-1-0"
        assert line(request="req-2")["request"] == "req-2"
    assert "request" not in line()


async def test_a_task_started_for_a_request_speaks_of_it_too() -> None:
    async def speak() -> dict[str, Any]:
        await asyncio.sleep(0)
        return line()

    with about_request("req-1"):
        speaking = asyncio.create_task(speak())
    assert (await speaking)["request"] == "req-1"


def test_people_read_the_same_fields() -> None:
    record = logging.makeLogRecord({"msg": "said", "levelname": "INFO", "node": "d0"})
    with about_request("req-1"):
        assert TextFormatter("router").format(record).endswith("router INFO said request=req-1 node=d0")


def test_what_a_library_puts_on_every_record_for_itself_is_no_field() -> None:
    record = logging.makeLogRecord({"msg": "said", "levelname": "INFO", "node": "d0", "_ray_timestamp_ns": 5})
    assert TextFormatter("router").format(record).endswith("router INFO said node=d0")


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    root, make = logging.getLogger(), logging.getLogRecordFactory()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.setLogRecordFactory(make)


@pytest.mark.usefixtures("logging_as_before")
def test_a_program_that_is_started_can_be_told_to_log_alike() -> None:
    set_up_logging("router", log_format="text", level="warning")
    assert logging_options() == ["--log-format", "text", "--log-level", "warning"]
    set_up_logging("router", log_format="json", level="info")
    assert logging_options() == ["--log-format", "json", "--log-level", "info"]


@pytest.mark.usefixtures("logging_as_before")
def test_a_process_can_sign_all_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("router", log_format="json", level="info")
    sign_lines(worker=3)
    logging.getLogger("here").info("said")
    assert json.loads(capsys.readouterr().err)["worker"] == 3
