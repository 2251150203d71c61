"""The decode node as a program."""

import asyncio
import time

from twostep.core.errors import ConfigError
from twostep.decode_node.config import DecodeNodeConfig
from twostep.decode_node.node import DecodeNode
from twostep.decode_node.service import add_services
from twostep.engine.runner import Runner
from twostep.kv_transfer.local_transport import LocalFabric
from twostep.node.materials import Materials
from twostep.node.program import NodeProgram, serve_node


async def serve(config: DecodeNodeConfig, stop: asyncio.Event, fabric: LocalFabric | None = None) -> None:
    """Serve until `stop` is set, then drain; see `serve_node`."""
    await serve_node(node_program(config), config, stop, fabric)


def node_program(config: DecodeNodeConfig) -> NodeProgram[DecodeNode]:
    """Return what makes a node of this kind; building it raises ConfigError where nothing could ever be served."""

    def build(materials: Materials) -> DecodeNode:
        _require_landing_space(config, materials.runner)
        node = DecodeNode(materials, config, time.monotonic)
        _require_room(node)
        return node

    return NodeProgram("decode", config.landing_bytes, add_services, build)


def _require_landing_space(config: DecodeNodeConfig, runner: Runner) -> None:
    share, block_bytes = int(config.landing_bytes * config.landing_share), runner.kv.layout.block_bytes
    if share < block_bytes:
        raise ConfigError(f"landing_bytes * landing_share = {share} is less than one block, which takes {block_bytes} bytes")


def _require_room(node: DecodeNode) -> None:
    if node.control.describe().max_prompt_tokens < 1:
        num_blocks = node.control.describe().num_blocks
        raise ConfigError(
            f"engine.kv_bytes holds {num_blocks} blocks: with lookahead_tokens no prompt fits, not even of one token"
        )
