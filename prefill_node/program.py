"""The prefill node as a program."""

import asyncio
import time

from twostep.kv_transfer.local_transport import LocalFabric
from twostep.node.program import NodeProgram, serve_node
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.prefill_node.node import PrefillNode
from twostep.prefill_node.service import add_services


async def serve(config: PrefillNodeConfig, stop: asyncio.Event, fabric: LocalFabric | None = None) -> None:
    """Serve until `stop` is set, then drain; see `serve_node`."""
    await serve_node(node_program(config), config, stop, fabric)


def node_program(config: PrefillNodeConfig) -> NodeProgram[PrefillNode]:
    """Return what makes a node of this kind."""
    return NodeProgram("prefill", 0, add_services, lambda materials: PrefillNode(materials, config, time.monotonic))
