"""Which nodes a router is told of, by what the replicas of the pools say and do not say."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import DeploymentUnavailableError

from twostep.deploy.ray.nodes_file import Member, NodesFile
from twostep.router.discovery.member import Member as Found
from twostep.router.discovery.watched_file import read_members

D1, D2 = ({"address": f"10.0.0.{n}:7", "id": f"d{n}", "host": f"10.0.0.{n}"} for n in (1, 2))
SLOW = ConnectionError("no answer")


class FakePool:
    """Gives the next answer each time it is asked."""

    def __init__(self, *answers: Sequence[Member | BaseException] | Exception) -> None:
        self._answers = list(answers)

    async def __call__(self) -> Sequence[Member | BaseException]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Hearing(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the replica's log is told. Serve's logger does not propagate, so that it is heard here itself."""
    hearing = Hearing()
    monkeypatch.setattr(logging.getLogger("ray.serve"), "handlers", [hearing])
    return hearing.said


@pytest.mark.parametrize(
    ("then", "left"),
    [
        ([D1], [D1]),
        ([D1, {}], [D1]),
        ([D1, ActorDiedError()], [D1]),
        ([D1, SLOW], [D1, D2]),
        ([D2, SLOW], [D2, D1]),
        (TimeoutError(), [D1, D2]),
        (DeploymentUnavailableError(None), []),
    ],
    ids=["stopped", "node died", "replica died", "silent", "the other silent", "nobody answers in time", "no replicas"],
)
async def test_who_is_gone_leaves_and_who_is_silent_stays(
    tmp_path: Path, then: Sequence[Member | BaseException] | Exception, left: list[Member]
) -> None:
    path = tmp_path / "nodes.json"
    file = NodesFile(path, {"prefill": FakePool([], []), "decode": FakePool([D1, D2], then)})
    await file.look()
    assert json.loads(path.read_text()) == {"prefill": [], "decode": [D1, D2]}
    await file.look()
    assert json.loads(path.read_text()) == {"prefill": [], "decode": left}


async def test_a_silent_replica_is_told_of_once_while_the_other_pool_answers(tmp_path: Path, said: list[str]) -> None:
    file = NodesFile(tmp_path / "nodes.json", {"prefill": FakePool([], [], []), "decode": FakePool([SLOW], [SLOW], [SLOW])})
    for _ in range(3):
        await file.look()
    assert said == ["a node does not say where it is: decode: no answer"]


async def test_a_silent_replica_is_told_of_once_while_the_other_pool_is_silent_too(tmp_path: Path, said: list[str]) -> None:
    file = NodesFile(tmp_path / "nodes.json", {"prefill": FakePool([SLOW], [SLOW]), "decode": FakePool([SLOW], [SLOW])})
    for _ in range(2):
        await file.look()
    assert [line.partition(": ")[2] for line in said] == ["prefill: no answer", "decode: no answer"]


async def test_a_router_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    await NodesFile(path, {"prefill": FakePool([D2]), "decode": FakePool([D1])}).look()
    assert read_members(path) == [Found("prefill", "10.0.0.2:7", id="d2"), Found("decode", "10.0.0.1:7", id="d1")]
