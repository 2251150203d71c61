"""All nodes of a cluster in one process, joined by the local transport: `twostep up --transport local` runs this."""

import asyncio

from twostep.core.config import config
from twostep.core.program import leave, run_program
from twostep.decode_node import program as decode_program
from twostep.decode_node.config import DecodeNodeConfig
from twostep.kv_transfer.local_transport import LocalFabric
from twostep.prefill_node import program as prefill_program
from twostep.prefill_node.config import PrefillNodeConfig


@config
class NodesConfig:
    """One configuration per node."""

    prefill: tuple[PrefillNodeConfig, ...] = ()
    decode: tuple[DecodeNodeConfig, ...] = ()


async def serve(nodes: NodesConfig, stop: asyncio.Event) -> None:
    """Serve all nodes until `stop`. Raises ConfigError or EngineFault, in a group, when one of them fails."""
    fabric = LocalFabric()
    async with asyncio.TaskGroup() as tasks:
        for prefill in nodes.prefill:
            tasks.create_task(prefill_program.serve(prefill, stop, fabric))
        for decode in nodes.decode:
            tasks.create_task(decode_program.serve(decode, stop, fabric))


if __name__ == "__main__":
    leave(run_program("twostep-nodes", "Serves several nodes in one process.", NodesConfig, serve))
