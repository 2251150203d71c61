"""`twostep up` with real programs and the fake model: how it serves, and how it ends."""

import json
import os
import select
import signal
import socket
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from twostep.cli.router_client import Answer, RouterClient
from twostep.tests.cli.running import END_S, up
from twostep.tests.kv_transfer.needs_ucx import needs_ucx

pytestmark = pytest.mark.processes

FAKE = ("--model", "fake")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


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
    with up(tmp_path, *FAKE) as cluster:
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


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once_and_quietly(signum: signal.Signals, tmp_path: Path) -> None:
    """The router still has an answer to finish, and half a minute for it."""
    body = {"prompt": "Hello", "max_tokens": 1000, "stream": True}
    with up(tmp_path, "--model", "fake:step_s=0.5") as cluster:
        children = cluster.children()
        with httpx.stream("POST", f"{cluster.url}/v1/completions", json=body, timeout=END_S, trust_env=False) as reply:
            next(reply.iter_lines())
            cluster.process.send_signal(signum)
            wait_until_refused(cluster.url)
            cluster.process.send_signal(signum)
            assert cluster.ended() == (128 + signum, "")
    assert gone(list(children.values()))
    assert list(tmp_path.iterdir()) == []


def wait_until_refused(url: str) -> None:
    """Wait until the router takes no connections any more: it drains."""
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{url}/health", timeout=END_S, trust_env=False)
        except httpx.TransportError:
            return
        time.sleep(0.05)
    raise AssertionError("the router still takes connections")


def test_all_nodes_can_live_in_one_process(tmp_path: Path) -> None:
    with up(tmp_path, *FAKE, "--transport", "local", "--prefill", "2", "--decode", "2") as cluster:
        assert set(cluster.children()) == {"cli.one_process", "router"}
        assert ask(cluster.url).bill["decode_computed_tokens"] == 0
        cluster.process.send_signal(signal.SIGTERM)
        assert cluster.ended() == (0, "")


@pytest.mark.parametrize("victim", ["prefill_node", "decode_node", "router"])
def test_a_child_that_is_killed_takes_the_command_down_and_is_named_before_the_others_have_stopped(
    victim: str, tmp_path: Path
) -> None:
    name = {"prefill_node": "prefill-0", "decode_node": "decode-0", "router": "router"}[victim]
    with up(tmp_path, *FAKE) as cluster:
        children = cluster.children()
        frozen = children["prefill_node" if victim == "decode_node" else "decode_node"]
        os.kill(frozen, signal.SIGSTOP)
        os.kill(children[victim], signal.SIGKILL)
        assert cluster.process.stderr
        told = cluster.process.stderr.readline()
        os.kill(frozen, signal.SIGCONT)
        code, complaint = cluster.ended()
    assert told.startswith(f"twostep: {name} was killed by SIGKILL; its log, {tmp_path}/")
    assert code == 1
    assert "Traceback" not in complaint
    assert gone(list(children.values()))


def test_a_command_that_is_killed_takes_its_children_along(tmp_path: Path) -> None:
    with up(tmp_path, *FAKE) as cluster:
        children = cluster.children()
        cluster.process.kill()
        assert gone(list(children.values()))


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with up(tmp_path, *FAKE, "--port", str(port)) as cluster:
            assert cluster.line == ""
            code, complaint = cluster.ended()
    assert code == 2
    expected = f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another host or port\n"
    assert complaint == f"twostep: router: twostep.router: {expected}"
    assert not list(tmp_path.glob("twostep-*"))


def test_what_only_a_node_can_find_wrong_is_one_line(tmp_path: Path) -> None:
    with up(tmp_path, *FAKE, "--set", "decode.model=fake:colour=red") as cluster:
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


@needs_ucx
def test_kv_can_cross_over_ucx(tmp_path: Path) -> None:
    with up(tmp_path, *FAKE, "--transport", "ucx") as cluster:
        answer = ask(cluster.url)
        assert (answer.finish_reason, answer.bill["decode_computed_tokens"]) == ("length", 0)
        assert answer.bill["bytes_moved"] > 0
        cluster.process.send_signal(signal.SIGTERM)
        assert cluster.ended() == (0, "")


def test_a_missing_nixl_is_one_line_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("nixl", "nixl_cu12", "nixl_cu13"):
        (tmp_path / "hidden" / package).mkdir(parents=True)
        (tmp_path / "hidden" / package / "__init__.py").write_text(f"raise ModuleNotFoundError(name={package!r})")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "hidden"), os.environ.get("PYTHONPATH", "")]))
    with up(tmp_path, *FAKE) as cluster:
        assert cluster.line == ""
        code, complaint = cluster.ended()
    assert code == 2
    assert "nixl" in complaint.lower()
    assert complaint.count("\n") == 1
