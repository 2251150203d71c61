"""An API server with the EndpointSlices of a large cluster, of which some change at a steady pace; as its own process.

`python -m twostep.benchmarks.discovery_rows.api_server NODES CHANGES_PER_S` prints its port. Each change replaces one pod: its
uid ends with the time at which it was sent, on this machine's monotonic clock.
"""

import asyncio
import json
import socket
import sys
import time
from collections import deque
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

SLICE = 100
"""Endpoints in one slice, as Kubernetes cuts them."""


class Slices:
    """All pods are in slices of their pool; `changes` are the events since the start."""

    def __init__(self, num_nodes: int, changes_per_s: float) -> None:
        self._period_s = 1 / changes_per_s
        pods = [self._endpoint(number, f"pod-{number}") for number in range(num_nodes)]
        halves = {"prefill": pods[: num_nodes // 2], "decode": pods[num_nodes // 2 :]}
        self.slices = [
            self._slice(role, start, half[start : start + SLICE])
            for role, half in halves.items()
            for start in range(0, len(half), SLICE)
        ]
        self.version = 1
        self.changed = asyncio.Condition()
        self.events: deque[bytes] = deque(maxlen=1000)

    async def keep_changing(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(self._period_s)
            number += 1
            changed = self.slices[number % len(self.slices)]
            place = number // len(self.slices) % len(changed["endpoints"])
            self.version += 1
            changed["metadata"]["resourceVersion"] = str(self.version)
            address = changed["endpoints"][place]["addresses"][0]
            changed["endpoints"][place] = {
                **changed["endpoints"][place],
                "addresses": [address],
                "targetRef": {"kind": "Pod", "uid": f"pod-{number}-at-{time.monotonic():.6f}"},
            }
            async with self.changed:
                self.events.append(json.dumps({"type": "MODIFIED", "object": changed}).encode() + b"\n")
                self.changed.notify_all()

    async def answer(self, request: Request) -> Response:
        if "watch" in request.query_params:
            return StreamingResponse(self._watch())
        return JSONResponse({"metadata": {"resourceVersion": str(self.version)}, "items": self.slices})

    async def _watch(self) -> Any:
        version = self.version
        while True:
            async with self.changed:
                await self.changed.wait_for(lambda: self.version > version)  # noqa: B023 - read while waited for
                fresh = list(self.events)[version - self.version :]
                version = self.version
            for event in fresh:
                yield event

    def _endpoint(self, number: int, uid: str) -> dict[str, Any]:
        return {
            "addresses": [f"10.0.{number // 250}.{number % 250}"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": f"machine-{number // 8}",
            "zone": f"zone-{number % 3}",
            "targetRef": {"kind": "Pod", "uid": uid},
        }

    def _slice(self, role: str, start: int, endpoints: list[dict[str, Any]]) -> dict[str, Any]:
        labels = {"twostep.dev/role": role, "kubernetes.io/service-name": role}
        name = f"{role}-{start}"
        return {
            "metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": labels},
            "addressType": "IPv4",
            "ports": [{"name": "grpc", "port": 7000}],
            "endpoints": list(endpoints),
        }


async def main(num_nodes: int, changes_per_s: float) -> None:
    slices = Slices(num_nodes, changes_per_s)
    app = Starlette(routes=[Route("/{path:path}", slices.answer)])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        await asyncio.gather(server.serve(sockets=[listener]), slices.keep_changing())


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
