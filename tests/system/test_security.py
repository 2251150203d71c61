"""Real programs that know each other by certificate: they serve, and whoever has none gets nothing of a node."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import grpc.aio
import httpx
import pytest

from twostep.cli.main import main
from twostep.core.certificate_end import ends_at
from twostep.proto import handoff_pb2, handoff_pb2_grpc, node_pb2_grpc
from twostep.proto import node_pb2 as pb
from twostep.proto.rpc import open_channel
from twostep.proto.security import MutualTls
from twostep.tests.certificates import Authority
from twostep.tests.chaos.plan import Plan
from twostep.tests.chaos.programs import Program
from twostep.tests.chaos.questions import Question
from twostep.tests.chaos.town import town

pytestmark = pytest.mark.processes
LISTENS = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}


async def test_a_cluster_serves_over_mutual_tls_and_a_stranger_can_neither_reserve_nor_learn_a_ucx_address(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    tls = {name: {"tls": authority.issue(name).settings()} for name in ("prefill", "decode", "router")}
    plan = Plan(tmp_path, num_prefill=1, num_decode=1, roles=tls, each={"r0": tls["router"]})
    async with town(plan) as here:
        await here.answers_rightly([Question(number) for number in range(3)])
        ends = ends_at((tmp_path / "router" / "tls.crt").read_bytes())
        assert (
            await told_end(
                here.routers[0].addresses["http"], 'router_certificate_end_timestamp_seconds{certificate="internal"}'
            )
            == ends
        )
        for name, node in (("prefill", here.prefill[0]), ("decode", here.decode[0])):
            ends = ends_at((tmp_path / name / "tls.crt").read_bytes())
            assert await told_end(node.addresses["metrics"], "certificate_end_timestamp_seconds") == ends
        (tmp_path / "own.yaml").write_text(json.dumps({"tls": authority.issue("me").tls_values()}))
        for node in here.nodes:
            command = ["ledger", node.addresses["grpc"], "--tls-of", str(tmp_path / "own.yaml")]
            assert await asyncio.to_thread(main, command) == 0
        address = here.decode[0].addresses["grpc"]
        strangers = [open_channel(address), MutualTls(authority.issue("x", "twostep.other").tls()).open_channel(address)]
        for stranger, expected in zip(strangers, (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED), strict=True):
            async with stranger as channel:
                for call in (
                    node_pb2_grpc.DecodeStub(channel).Reserve(pb.ReserveRequest(), timeout=5).read(),
                    handoff_pb2_grpc.HandoffDestinationStub(channel).Hello(handoff_pb2.HelloRequest(), timeout=5),
                    node_pb2_grpc.NodeStub(channel).Describe(pb.DescribeRequest(), timeout=5),
                ):
                    with pytest.raises(grpc.aio.AioRpcError) as raised:
                        await call
                    assert raised.value.code() is expected


async def told_end(address: str, metric: str) -> float:
    """Return what a program's metrics say of when its certificate ends."""
    async with httpx.AsyncClient(trust_env=False) as http:
        page = (await http.get(f"http://{address}/metrics")).text
    [line] = [line for line in page.splitlines() if line.startswith(f"twostep_{metric} ")]
    return float(line.split()[-1])


def listening_on(program: Program) -> set[str]:
    """Return the addresses of the program's listening TCP sockets, as the kernel writes them."""
    own = set()
    for descriptor in Path(f"/proc/{program.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            own.add(str(descriptor.readlink()))
    tables = [Path(f"/proc/{program.pid}/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return {row[1].partition(":")[0] for row in rows if row[3] == LISTENS and f"socket:[{row[9]}]" in own}


async def test_nodes_on_loopback_can_be_reached_from_nowhere_else_not_even_by_ucx(tmp_path: Path) -> None:
    async with town(Plan(tmp_path, num_prefill=1, num_decode=1)) as here:
        for node in here.nodes:
            assert listening_on(node) <= LOOPBACK
