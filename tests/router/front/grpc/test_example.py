"""The gRPC example of the documentation runs as it is written there."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

from twostep.tests.router.cluster import cluster

pytestmark = pytest.mark.processes

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "grpc_client.py"


async def test_the_example_prints_the_answer_and_what_it_took(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        command = [sys.executable, str(EXAMPLE), "hi", "--address", running.grpc]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        printed, _ = await process.communicate()
        assert process.returncode == 0
        assert re.fullmatch(r"Hello, world\n12 tokens, the first after \d+ ms\n", printed.decode())
