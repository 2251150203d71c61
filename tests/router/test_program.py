"""The program itself: how it says what is wrong, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

NODES = ["--set", "prefill=[127.0.0.1:1]", "--set", "decode=[127.0.0.1:2]"]


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "twostep.router", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_port_that_is_taken_is_one_line_and_exit_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(*NODES, "--set", f"port={port}", "--log-level", "error")
    assert done.returncode == 2
    assert (
        done.stderr
        == f"twostep.router: cannot listen on 127.0.0.1:{port}: Address already in use; choose another host or port\n"
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--set", "colour=red"], "twostep.router: --set: unknown key colour (value 'red')"),
        (
            [*NODES, "--set", "model=/nowhere"],
            "twostep.router: model: expected a model folder in Hugging Face format or `fake`, found '/nowhere'\n",
        ),
        (
            [*NODES, "--set", "port=0", "--set", "address_file=/nowhere/router.json"],
            "twostep.router: address_file: /nowhere/router.json cannot be written: No such file or directory\n",
        ),
        (
            [*NODES, "--set", "host=no.such.host.invalid", "--set", "port=0"],
            "twostep.router: cannot listen on no.such.host.invalid:0: Name or service not known; choose another host or port\n",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_2(arguments: list[str], line: str) -> None:
    done = run(*arguments, "--log-level", "error")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(line)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(tmp_path: Path, signum: signal.Signals) -> None:
    address_file = tmp_path / "router.json"
    command = [sys.executable, "-m", "twostep.router", *NODES, "--set", "port=0", "--set", f"address_file={address_file}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if json.loads(line)["message"] == "router listens":
                break
        assert json.loads(address_file.read_text())["http"], "whoever reads the line finds the file"
        os.kill(process.pid, signum)
        _, rest = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in rest
    assert json.loads(address_file.read_text())["http"].startswith("127.0.0.1:")
