"""A bare gRPC echo: what any call to a process on that core takes. Run as a program, with the core as its argument."""

import asyncio
import os
import sys
from typing import Any

import grpc

from twostep.proto.rpc import new_server

METHOD = "/echo/Echo"


class _Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_unary_rpc_method_handler(_echo) if handler_call_details.method == METHOD else None


async def _echo(request: bytes, context: object) -> bytes:
    del context
    return request


async def _serve(core: int) -> None:
    os.sched_setaffinity(0, {core})
    server = new_server()
    server.add_generic_rpc_handlers((_Echo(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
