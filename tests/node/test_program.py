"""How a node that cannot be built says so."""

import asyncio

import pytest

from twostep.core.errors import ConfigError, TransferFailed
from twostep.engine.config import EngineConfig
from twostep.kv_transfer.local_transport import LocalFabric
from twostep.node.config import NodeConfig
from twostep.node.program import HostedNode, Materials, NodeProgram, serve_node


async def test_memory_that_the_transport_does_not_take_is_one_line_that_says_what_to_ask() -> None:
    def build(materials: Materials) -> HostedNode:
        raise TransferFailed("VRAM cannot be registered: NIXL_ERR_BACKEND")

    program = NodeProgram("prefill", 0, lambda server, node: None, build)
    config = NodeConfig(transport="local", engine=EngineConfig(kv_bytes=1 << 20))
    with pytest.raises(ConfigError, match=r"^transport: VRAM cannot be registered: NIXL_ERR_BACKEND: `twostep doctor` says"):
        await serve_node(program, config, asyncio.Event(), LocalFabric())
