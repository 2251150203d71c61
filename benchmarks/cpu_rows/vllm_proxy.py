"""Runs in vLLM's own environment: the least proxy for its pair. Prefill with one token, then decode with what that answered.

usage: vllm_proxy.py PORT PREFILL_PORT DECODE_PORT
"""

import sys
from collections.abc import AsyncIterator

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse

PORT, PREFILL, DECODE = (int(port) for port in sys.argv[1:4])
ASK_FOR_KV = {"do_remote_decode": True, "do_remote_prefill": False}

http = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))


async def health() -> PlainTextResponse:
    return PlainTextResponse("ok")


async def complete(request: Request) -> StreamingResponse:
    body = await request.json()
    first = {**body, "stream": False, "max_tokens": 1, "kv_transfer_params": ASK_FOR_KV}
    prefilled = (await http.post(f"http://127.0.0.1:{PREFILL}/v1/completions", json=first)).raise_for_status().json()
    second = {**body, "kv_transfer_params": prefilled["kv_transfer_params"]}

    async def stream() -> AsyncIterator[bytes]:
        async with http.stream("POST", f"http://127.0.0.1:{DECODE}/v1/completions", json=second) as answer:
            async for chunk in answer.aiter_raw():
                yield chunk

    return StreamingResponse(stream(), media_type="text/event-stream")


if __name__ == "__main__":
    app = FastAPI()
    app.add_api_route("/health", health)
    app.add_api_route("/v1/completions", complete, methods=["POST"])
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
