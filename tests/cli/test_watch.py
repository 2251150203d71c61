"""Children that stop, die, hang or refuse to stop, and what the command line says about each."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from twostep.cli.child import ChildEnded, Program, start
from twostep.cli.cluster import read_when_written
from twostep.cli.watch import Stopped, Watch
from twostep.core.errors import ConfigError

pytestmark = pytest.mark.processes

PROGRAMS = Path(__file__).parent / "programs"
FOREVER_S = 60.0


def program(end: str, name: str = "prefill-0", **config: Any) -> Program:
    path = os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", "")])
    return Program(name, "stand_in", {"end": end, **config}, {"PYTHONPATH": path})


def told(folder: Path, name: str = "prefill-0") -> dict[str, Any]:
    return {"address": {"grpc": "here"}, "address_file": str(folder / f"{name}.json")}


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_child_that_is_asked_to_stop_says_no_farewell(tmp_path: Path) -> None:
    watch = Watch()
    async with watch.started([program("wait", **told(tmp_path))], tmp_path, stop_s=FOREVER_S):
        await watch.until(read_when_written(tmp_path / "prefill-0.json"))
    assert watch.farewells == []


async def test_a_child_that_ignores_sigterm_is_killed_and_named(tmp_path: Path) -> None:
    watch = Watch()
    async with watch.started([program("ignore SIGTERM", **told(tmp_path))], tmp_path, stop_s=0.1):
        await watch.until(read_when_written(tmp_path / "prefill-0.json"))
    assert [str(farewell) for farewell in watch.farewells] == [
        f"prefill-0 did not stop within 0.1 s and was killed: {tmp_path}/prefill-0.log"
    ]


async def test_a_second_wish_to_stop_kills_at_once_and_without_farewells(tmp_path: Path) -> None:
    watch = Watch()
    async with watch.started([program("ignore SIGTERM", **told(tmp_path))], tmp_path, stop_s=FOREVER_S):
        await watch.until(read_when_written(tmp_path / "prefill-0.json"))
        watch.ask_to_stop(signal.SIGTERM)
        with pytest.raises(Stopped):
            await watch.until(never())
        assert watch.cut_short_by is None
        watch.ask_to_stop(signal.SIGINT)
    assert (watch.cut_short_by, watch.farewells) == (signal.SIGINT, [])


async def test_a_child_with_a_wrong_configuration_hands_on_its_line_and_its_exit_code(tmp_path: Path) -> None:
    ended = await death(program("config error"), tmp_path)
    assert (str(ended), ended.exit_code) == ("prefill-0: stand_in: port 80 is taken", 2)


async def test_a_child_that_crashes_is_quoted(tmp_path: Path) -> None:
    ended = await death(program("crash"), tmp_path)
    first, *quoted = str(ended).splitlines()
    assert first == f"prefill-0 ended with code 1; its log, {tmp_path}/prefill-0.log, ends with:"
    assert quoted[-1] == "  ZeroDivisionError: a bug"
    assert ended.exit_code == 1


async def test_a_child_that_is_killed_is_said_to_have_been(tmp_path: Path) -> None:
    ended = await death(program("killed"), tmp_path)
    assert str(ended).startswith("prefill-0 was killed by SIGSEGV; its log, ")


async def death(dying: Program, folder: Path) -> ChildEnded:
    """Run a healthy child beside `dying`; return how the watch says that it ended. The healthy one is stopped too."""
    watch = Watch()
    with pytest.raises(ChildEnded) as caught:
        async with watch.started([program("wait", "decode-0"), dying], folder, stop_s=FOREVER_S):
            await watch.until(never())
    assert {farewell.name for farewell in watch.farewells} <= {dying.name}
    return caught.value


async def test_what_was_wanted_comes_back_while_the_children_live(tmp_path: Path) -> None:
    async def answer() -> int:
        return 42

    watch = Watch()
    async with watch.started([program("wait")], tmp_path, stop_s=FOREVER_S):
        assert await watch.until(answer()) == 42


def test_no_child_outlives_a_command_line_that_is_killed(tmp_path: Path) -> None:
    parent = f"""
import asyncio, pathlib
from twostep.cli.child import Program, start
async def main():
    child = await start(Program("orphan", "stand_in", {{"end": "ignore SIGTERM"}}), pathlib.Path({str(tmp_path)!r}))
    print(child.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    environment = {**os.environ, **program("wait").environment}
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        child = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
    # A pidfd can be read as soon as its process has ended.
    assert select.select([child], [], [], FOREVER_S)[0] == [child]
    os.close(child)


async def test_a_child_does_not_see_the_terminals_ctrl_c(tmp_path: Path) -> None:
    child = await start(program("wait", **told(tmp_path)), tmp_path)
    await read_when_written(tmp_path / "prefill-0.json")
    assert os.getsid(child.pid) == child.pid
    assert await child.stop(within_s=FOREVER_S) is None


def test_a_tethered_program_does_not_start_under_a_stranger() -> None:
    command = [sys.executable, "-m", "twostep.core.tethered", "1", "stand_in"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "the process 1 that started this one has ended\n")


def test_signals_are_asked_of_the_loop() -> None:
    async def main() -> None:
        watch = Watch()
        watch.listen_to_signals()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped):
            await watch.until(never())

    asyncio.run(main())


async def test_a_folder_that_takes_no_files_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^cannot write to .*/absent: No such file or directory: free some space, or set TMPDIR$"
    ):
        await start(program("wait"), tmp_path / "absent")
