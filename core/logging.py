"""Log lines: JSON for machines, plain text for people. Never prompt text.

A line written while a request is served carries its id, without the writer having to know it.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["json", "text"]
_request: ContextVar[str | None] = ContextVar("request", default=None)
_PLAIN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logging(program: str, *, log_format: LogFormat, level: str) -> None:
    """Send all log lines of this process to stderr. `extra={...}` fields become keys of the JSON line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(program) if log_format == "json" else TextFormatter(program))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def logging_options() -> list[str]:
    """Return the options by which a program that this one starts logs alike."""
    root = logging.getLogger()
    log_format = "json" if any(isinstance(handler.formatter, JsonFormatter) for handler in root.handlers) else "text"
    return ["--log-format", log_format, "--log-level", logging.getLevelName(root.level).lower()]


def sign_lines(**fields: object) -> None:
    """Let every log line of this process carry `fields`."""
    make = logging.getLogRecordFactory()

    def make_signed(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        vars(record).update(fields)
        return record

    logging.setLogRecordFactory(make_signed)


@contextmanager
def about_request(request: str) -> Iterator[None]:
    """Let every log line of the block, and of the tasks that it starts, carry `request`."""
    before = _request.set(request)
    try:
        yield
    finally:
        _request.reset(before)


class JsonFormatter(logging.Formatter):
    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "program": self._program,
            "logger": record.name,
            "message": record.getMessage(),
            **_extra_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    def __init__(self, program: str) -> None:
        super().__init__(f"%(asctime)s {program} %(levelname)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value}" for key, value in _extra_fields(record).items())
        return f"{super().format(record)} {fields}".rstrip()


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    request = _request.get()
    about = {} if request is None else {"request": request}
    # What a library puts on every record for itself, as Ray does, begins with an underscore.
    return about | {key: value for key, value in vars(record).items() if key not in _PLAIN_FIELDS and key[0] != "_"}
