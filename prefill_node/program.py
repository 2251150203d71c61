"""The prefill node as a program."""

import asyncio
import time

from twostep.kv_transfer.local_transport import LocalFabric
from twostep.node.program import Materials, NodeProgram, serve_node, slow_path
from twostep.prefill_node.config import PrefillNodeConfig
from twostep.prefill_node.node import PrefillNode
from twostep.prefill_node.service import add_services


async def serve(config: PrefillNodeConfig, stop: asyncio.Event, fabric: LocalFabric | None = None) -> None:
    """Serve until `stop` is set, then drain; see `serve_node`."""
    await serve_node(node_program(config), config, stop, fabric)


def node_program(config: PrefillNodeConfig) -> NodeProgram[PrefillNode]:
    """Return what makes a node of this kind."""

    def build(materials: Materials) -> PrefillNode:
        address = materials.address
        return PrefillNode(
            address.node,
            materials.runner,
            materials.transport,
            config,
            materials.metrics,
            time.monotonic,
            handoff_address=address.grpc,
            threads=materials.threads,
            channels=materials.channels,
            spans=materials.spans,
            slow_path=slow_path(materials.path, config),
        )

    return NodeProgram("prefill", 0, add_services, build)
