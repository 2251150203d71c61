"""`twostep drain`: what it asks of a node, and what it says about it."""

import pytest

from twostep.cli import drain
from twostep.cli.main import main
from twostep.cli.node_client import Load
from twostep.proto.security import Security


class FakeNode:
    """In place of the gRPC edge: a node that is idle, and notes why it is out of service."""

    def __init__(self) -> None:
        self.reason = ""

    async def cordon(self, _address: str, reason: str, _security: Security) -> Load:
        self.reason = reason
        return Load("d", num_requests=0, referenced_blocks=0, not_ready_reason=f"cordoned: {reason}")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    fake = FakeNode()
    monkeypatch.setattr(drain, "cordon", fake.cordon)
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
