"""`serve run deploy/ray/laptop.yaml`, as somebody types it who has just installed twostep."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from twostep.tests.chaos.waiting import until
from twostep.tests.ray.serving import free_port

pytestmark = [pytest.mark.processes, pytest.mark.model, pytest.mark.long]
FILE = Path(__file__).parents[2] / "deploy" / "ray" / "laptop.yaml"
SERVE_RUN = "import sys; from ray.serve.scripts import cli; sys.exit(cli())"
PATIENCE = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}
"""On a busy machine Serve would end its proxy before that has started, and itself."""
START_S = 120.0
STOP_S = 90.0
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@contextmanager
def serve_run(file: Path) -> Iterator[None]:
    """Run `serve run` for as long as the block lasts, and end it by Ctrl-C."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | PATIENCE
    command = [sys.executable, "-c", SERVE_RUN, "run", str(file)]
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_S)


async def until_proven(http: httpx.AsyncClient) -> None:
    async def missing() -> str:
        try:
            reply = await http.get("/ready")
        except httpx.TransportError as error:
            return f"{type(error).__name__} {error}"
        is_proven = reply.is_success and reply.json().get("proven_pairs")
        return "" if is_proven else f"no pair of nodes has exchanged bytes: {reply.text}"

    await until(missing, within_s=START_S)


@pytest.mark.timeout(START_S + STOP_S + 60)
async def test_smollm2_knows_the_capital_of_france_and_its_kv_crossed_between_two_actors(tmp_path: Path) -> None:
    told = yaml.safe_load(FILE.read_text())
    told["http_options"]["port"] = port = free_port()
    file = tmp_path / "laptop.yaml"
    file.write_text(yaml.safe_dump(told))
    address = f"http://127.0.0.1:{port}"
    with serve_run(file):
        async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as http:
            await until_proven(http)
            body = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "bill": True}
            reply = (await http.post("/v1/chat/completions", json=body)).json()
    assert reply["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert reply["bill"]["prefill_node"].startswith("prefill-")
    assert reply["bill"]["decode_node"].startswith("decode-")
    assert (reply["bill"]["decode_computed_tokens"], reply["bill"]["bytes_moved"] > 0) == (0, True)
