"""`twostep doctor`: it finds what is wrong, says what to do, and is content with what is well."""

import asyncio
import json
import resource
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from twostep.cli.checkup import machine
from twostep.cli.checkup import program as program_checkup
from twostep.cli.checkup.cluster import _advice_on, _clock
from twostep.cli.checkup.finding import Finding
from twostep.cli.checkup.machine import check_machine
from twostep.cli.checkup.program import check_program
from twostep.cli.doctor import until_well
from twostep.cli.main import main
from twostep.core.errors import TransferFailed
from twostep.core.ids import Incarnation, NodeId, NodeRef
from twostep.tests.certificates import YESTERDAY, Authority
from twostep.tests.kv_transfer.needs_ucx import needs_ucx
from twostep.tests.router.cluster import cluster


async def doctor(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["doctor", *arguments])


@pytest.mark.processes
async def test_a_cluster_that_serves_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster(tmp_path) as running:
        assert await doctor("--url", running.url) == 0
    said = capsys.readouterr().out
    assert "ok    router: ready, 1 pairs of nodes have exchanged bytes" in said
    assert "ok    prefill node p0@1: ready" in said
    assert "640 bytes of KV moved from p0 to d0" in said
    assert "wrong" not in said


@pytest.mark.processes
async def test_what_is_wrong_with_a_node_or_a_pair_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster(tmp_path, num_decode=2) as running:
        running.p.proven = {ref for ref in running.p.proven if ref.id == "d0"}
        running.decode[1].is_ready = False
        running.decode[1].ref = NodeRef(NodeId("d1"), Incarnation(9))
        await running.decode[1].beaten.wait(len(running.decode[1].seen.beats) + 3)
        assert await doctor("--url", running.url) == 1
    said = capsys.readouterr().out
    assert "wrong decode node d1@9: not ready: loading\n      look at the log of the pod at 127.0.0.1:" in said


@pytest.mark.processes
async def test_a_cluster_of_decode_nodes_alone_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster(tmp_path, num_prefill=0, allow_decode_alone=True) as running:
        assert await doctor("--url", running.url) == 0
    assert "ok    answer: d0 served alone" in capsys.readouterr().out


@pytest.mark.processes
async def test_a_router_that_is_not_there_is_said_in_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert await doctor("--url", "http://127.0.0.1:9") == 1
    said = capsys.readouterr().out
    assert said.startswith("wrong router: http://127.0.0.1:9 does not answer as a router does: ")
    assert "is it running, and is this its address?" in said


def test_it_asks_again_until_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twostep.cli.doctor.AGAIN_S", 0.001)
    answers = iter([[Finding("router", "not ready", "wait")], [Finding("router", "ready")]])
    assert until_well(lambda: iter(next(answers)), wait_s=10)[0].is_well


def test_clocks_that_differ_are_told() -> None:
    now = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    assert _clock("Thu, 01 Jan 2026 12:00:02 GMT", now).is_well
    assert "NTP" in _clock("Thu, 01 Jan 2026 11:58:00 GMT", now).advice


@pytest.mark.processes
def test_this_machine_moves_bytes() -> None:
    [transport] = [finding for finding in check_machine() if finding.subject == "transport"]
    assert transport.is_well
    assert "GB/s" in transport.says


@needs_ucx
@pytest.mark.parametrize("told_by", ["option", "file"])
async def test_the_transport_that_is_meant_is_looked_at(
    told_by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    file = tmp_path / "node.yaml"
    file.write_text("transport: ucx")
    await doctor(*{"option": ("--transport", "ucx"), "file": ("--config", str(file))}[told_by])
    assert "ok    transport: ucx moves " in (said := capsys.readouterr().out)
    assert "within this machine over tcp (UCX_NET_DEVICES=lo)" in said


def test_a_transport_that_moves_nothing_and_small_limits_come_with_advice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> float:
        raise TransferFailed("nothing arrives")

    monkeypatch.setattr(machine, "move_some_bytes", fail)
    monkeypatch.setattr(machine, "MIN_FILES", 1 << 40)
    monkeypatch.setattr(machine, "MIN_SHARED_BYTES", 1 << 60)
    monkeypatch.setattr(machine, "RDMA_DEVICES", tmp_path)
    monkeypatch.setenv("UCX_TLS", "rc,tcp")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    advice = {finding.subject: finding.advice for finding in check_machine()}
    assert "raise it" in advice["open files"]
    assert "sharedMemory" in advice["shared memory"]
    assert "memlock" in advice["locked memory"]
    assert "UCX_TLS=rc,tcp" in advice["transport"]


def test_a_machine_without_rdma_needs_no_locked_memory() -> None:
    assert machine._locked_memory(65536, has_rdma=False).is_well
    assert machine._locked_memory(resource.RLIM_INFINITY, has_rdma=True).is_well


def program(folder: Path, **values: object) -> Path:
    path = folder / "config.yaml"
    path.write_text(json.dumps(values))
    return path


def test_a_model_that_is_not_whole_is_named_by_what_it_lacks(tmp_path: Path) -> None:
    [gone] = check_program(program(tmp_path, model=str(tmp_path / "gone")))
    assert gone.says == f"there is no folder {tmp_path / 'gone'}"
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})
    )
    (tmp_path / "1.safetensors").touch()
    [partial] = check_program(program(tmp_path, model=str(tmp_path)))
    assert partial.says == f"{tmp_path} lacks 2.safetensors"
    (tmp_path / "2.safetensors").touch()
    assert [finding.is_well for finding in check_program(program(tmp_path, model=str(tmp_path)))] == [True]


@pytest.mark.parametrize(
    ("what", "says"),
    [("good", "valid for"), ("expired", "expired"), ("name", "Hostname mismatch"), ("authority", "verify failed")],
)
def test_a_certificate_is_looked_at_as_a_peer_would(tmp_path: Path, what: str, says: str) -> None:
    authority = Authority(tmp_path / "ours")
    match what:
        case "expired":
            identity = authority.issue("p", not_after=YESTERDAY)
        case "name":
            identity = authority.issue("p", "twostep.other")
        case _:
            identity = authority.issue("p")
    if what == "authority":
        identity.ca.write_bytes(Authority(tmp_path / "theirs").issue("x").ca.read_bytes())
    [finding] = check_program(program(tmp_path, tls=identity.tls_values()))
    assert (finding.is_well, says in finding.says) == (what == "good", True)


def test_certificates_that_end_soon_should_have_been_renewed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.issue("p", not_after=datetime.now(UTC) + timedelta(days=3, hours=1))
    front = {"certificate": str(identity.certificate), "key": str(identity.key)}
    findings = list(check_program(program(tmp_path, tls=identity.tls_values(), front_tls=front)))
    assert [finding.subject for finding in findings] == ["certificate", "front certificate"]
    assert all("3 days more" in finding.says and "renew it" in finding.advice for finding in findings)
    authority.issue("p")
    assert all(finding.is_well for finding in check_program(program(tmp_path, tls=identity.tls_values(), front_tls=front)))


def test_where_rdma_is_meant_its_ports_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_checkup, "RDMA_FOLDER", tmp_path / "infiniband")
    [none] = check_program(program(tmp_path, allow_tcp=False))
    assert (none.is_well, "there is no RDMA port here" in none.says) == (False, True)
    (tmp_path / "infiniband" / "mlx5_0" / "ports" / "1").mkdir(parents=True)
    [found] = check_program(program(tmp_path, allow_tcp=False))
    assert (found.is_well, found.says) == (True, "allow_tcp is false, ports here: mlx5_0:1")
    assert list(check_program(program(tmp_path, allow_tcp=True))) == []


def test_a_pair_that_went_over_tcp_gets_advice_of_its_own() -> None:
    assert "rdma.allowTcp" in _advice_on("failed KV to d@1 goes over TCP, and allow_tcp is false")
    assert "NetworkPolicies" in _advice_on("failed no handshake within 20 s")
