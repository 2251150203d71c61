"""`twostep drain`: what it asks of a node, and what it says about it."""

import pytest

from twostep.cli import drain
from twostep.cli.main import main
from twostep.cli.node_client import Load
from twostep.proto.security import Security


class FakeNode:
    """In place of the gRPC edge: a node that has `num_requests`, and notes why it is out of service."""

    def __init__(self) -> None:
        self.reason = ""
        self.num_requests = 0

    async def cordon(self, _address: str, reason: str, _security: Security) -> Load:
        self.reason = reason
        return self._load()

    async def undone(self, _address: str, _security: Security) -> Load:
        self.reason, self.num_requests = "", 0
        return self._load()

    def _load(self) -> Load:
        reason = f"cordoned: {self.reason}" if self.reason else ""
        return Load("d", self.num_requests, referenced_blocks=0, not_ready_reason=reason)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    fake = FakeNode()
    monkeypatch.setattr(drain, "cordon", fake.cordon)
    monkeypatch.setattr(drain, "fetch_load", fake.undone)
    monkeypatch.setattr(drain, "LOOK_S", 0)
    return fake


@pytest.mark.parametrize("unnamed", [KeyError("uid not found: 10001"), OSError("no name")])
def test_a_user_without_a_name_is_told_by_its_number(
    unnamed: Exception, node: FakeNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the images, whose user is a number only. Python 3.13 raises another error than those before."""

    def getuser() -> str:
        raise unnamed

    monkeypatch.setattr("getpass.getuser", getuser)
    monkeypatch.setattr("os.getuid", lambda: 10001)
    assert main(["drain", "127.0.0.1:7000"]) == 0
    assert node.reason == "drained by user 10001"
    assert capsys.readouterr().out == "d is idle and gets no more requests: it can be stopped, or put back by --undo\n"


def test_a_node_that_somebody_else_puts_back_is_not_said_to_be_out_of_service(
    node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.num_requests = 1
    assert main(["drain", "127.0.0.1:7000", "--reason", "new memory"]) == 1
    assert capsys.readouterr().out == "d is back in service: somebody has undone this, or the node was started anew\n"
