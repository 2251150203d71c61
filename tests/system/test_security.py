"""Real programs that know each other by certificate: they serve, and whoever has none gets nothing of a node."""

import asyncio
import json
from pathlib import Path

import grpc.aio
import pytest

from twostep.cli.main import main
from twostep.proto import handoff_pb2, handoff_pb2_grpc, node_pb2_grpc
from twostep.proto import node_pb2 as pb
from twostep.proto.rpc import open_channel
from twostep.proto.security import MutualTls
from twostep.tests.certificates import Authority
from twostep.tests.chaos.questions import Question
from twostep.tests.chaos.town import town

pytestmark = pytest.mark.processes


async def test_a_cluster_serves_over_mutual_tls_and_a_stranger_can_neither_reserve_nor_learn_a_ucx_address(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    tls = {name: {"tls": authority.issue(name).settings()} for name in ("prefill", "decode", "router")}
    async with town(tmp_path, num_prefill=1, num_decode=1, **tls) as here:  # type: ignore[arg-type]
        async with here.asking([Question(number) for number in range(3)]) as streams:
            pass
        assert all(stream.is_right for stream in streams)
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
