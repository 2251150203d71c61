"""The decode node as a program."""

import asyncio
import time

from twostep.decode_node.config import DecodeNodeConfig
from twostep.decode_node.node import DecodeNode
from twostep.decode_node.service import add_services
from twostep.kv_transfer.local_transport import LocalFabric
from twostep.node.program import Materials, NodeProgram, serve_node


async def serve(config: DecodeNodeConfig, stop: asyncio.Event, fabric: LocalFabric | None = None) -> None:
    """Serve until `stop` is set, then drain; see `serve_node`."""

    def build(materials: Materials) -> DecodeNode:
        return DecodeNode(
            materials.address.node, materials.runner, materials.transport, config, materials.metrics, time.monotonic
        )

    await serve_node(NodeProgram("decode", add_services, build), config, stop, fabric)
