"""`twostep up` with real programs and the fake model: how it serves, and how it ends."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from twostep.cli.router_client import Answer, RouterClient

pytestmark = pytest.mark.processes

COMMAND = (sys.executable, "-c", "import sys; from twostep.cli.main import main; sys.exit(main())")
END_S = 60.0
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass(frozen=True, slots=True)
class Up:
    """A running `twostep up` and the line that it printed."""

    process: subprocess.Popen[str]
    folder: Path
    line: str

    @property
    def url(self) -> str:
        return self.line.split()[3]

    def children(self) -> dict[str, int]:
        """Return the process id of each child by the name of its program's module."""
        pids = [int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in pids}
        return {row[row.index("twostep.cli.tethered") + 2].removeprefix("twostep."): pid for pid, row in commands.items()}

    def ended(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was complained about."""
        assert self.process.stderr
        complaint = self.process.stderr.read()
        return self.process.wait(END_S), complaint


@contextmanager
def up(folder: Path, *options: str) -> Iterator[Up]:
    command = (*COMMAND, "up", "--model", "fake", "--port", "0", *options)
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        try:
            yield Up(process, folder, process.stdout.readline())
        finally:
            process.kill()


def ask(url: str) -> Answer:
    answer = Answer()
    with closing(RouterClient(url)) as client:
        for _ in client.stream(QUESTION, answer, temperature=0, max_tokens=8, ignore_eos=True, bill=True):
            pass
    return answer


def gone(pids: list[int]) -> bool:
    """Return whether all these processes end in time."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([descriptor], [], [], END_S)[0]:
                return False
        finally:
            os.close(descriptor)
    return True


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_stop_and_leaves_nothing_behind(signum: signal.Signals, tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        assert cluster.line.startswith("twostep serves at http://127.0.0.1:")
        answer = ask(cluster.url)
        assert (answer.finish_reason, answer.usage["completion_tokens"]) == ("length", 8)
        assert (answer.bill["decode_computed_tokens"], answer.bill["decode_node"]) == (0, "decode-0")
        assert answer.bill["bytes_moved"] > 0
        children = cluster.children()
        assert set(children) == {"prefill_node", "decode_node", "router"}
        cluster.process.send_signal(signum)
        assert cluster.ended() == (0, "")
    assert gone(list(children.values()))
    assert list(tmp_path.iterdir()) == []


def test_all_nodes_can_live_in_one_process(tmp_path: Path) -> None:
    with up(tmp_path, "--transport", "local", "--prefill", "2", "--decode", "2") as cluster:
        assert set(cluster.children()) == {"cli.one_process", "router"}
        assert ask(cluster.url).bill["decode_computed_tokens"] == 0
        cluster.process.send_signal(signal.SIGTERM)
        assert cluster.ended() == (0, "")


@pytest.mark.parametrize("victim", ["prefill_node", "decode_node", "router"])
def test_a_child_that_is_killed_takes_the_command_down_with_its_name(victim: str, tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        children = cluster.children()
        os.kill(children[victim], signal.SIGKILL)
        code, complaint = cluster.ended()
    name = {"prefill_node": "prefill-0", "decode_node": "decode-0", "router": "router"}[victim]
    assert code == 1
    assert complaint.startswith(f"twostep: {name} was killed by SIGKILL; its log, {tmp_path}/")
    assert "Traceback" not in complaint
    assert gone(list(children.values()))


def test_a_command_that_is_killed_takes_its_children_along(tmp_path: Path) -> None:
    with up(tmp_path) as cluster:
        children = cluster.children()
        cluster.process.kill()
        assert gone(list(children.values()))


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with up(tmp_path, "--port", str(port)) as cluster:
            assert cluster.line == ""
            code, complaint = cluster.ended()
    assert code == 2
    expected = f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another host or port\n"
    assert complaint == f"twostep: router: twostep.router: {expected}"


def test_what_only_a_node_can_find_wrong_is_one_line(tmp_path: Path) -> None:
    with up(tmp_path, "--set", "decode.model=fake:colour=red") as cluster:
        assert cluster.line == ""
        code, complaint = cluster.ended()
    assert code == 2
    assert complaint.startswith("twostep: decode-0: twostep-decode-node: model fake: unknown key colour: expected one of ")
    assert complaint.count("\n") == 1


def test_a_model_folder_that_is_none_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with up(tmp_path, "--model", str(broken)) as cluster:
        assert cluster.line == ""
        code, complaint = cluster.ended()
    assert code == 2
    assert str(broken) in complaint
    assert complaint.count("\n") == 1
