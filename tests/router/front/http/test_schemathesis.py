"""A running router against its own /openapi.json: requests made from the document, replies held against it."""

import asyncio
import sys
from pathlib import Path

import pytest

from twostep.tests.router.cluster import cluster

pytestmark = pytest.mark.processes

# What the document says is valid may still be refused, for what no schema can say: a prompt that is longer than the model
# takes, a token that it does not have, a conversation that its chat template refuses.
CHECKS = ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
PLAIN = ["--no-color", "--generation-database", "none", "--warnings", "off"]
FEW = ["--phases", "coverage,fuzzing", "--max-examples", "3", "--seed", "1"]
MANY = ["--phases", "coverage,fuzzing", "--max-examples", "300"]


@pytest.mark.parametrize("effort", [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.long)])
@pytest.mark.timeout(900)
async def test_the_router_keeps_to_its_own_document(tmp_path: Path, effort: list[str]) -> None:
    async with cluster(tmp_path) as running:
        command = ["-m", "schemathesis.cli", "run", f"{running.url}/openapi.json", *CHECKS, *PLAIN, *effort]
        program = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            report, _ = await program.communicate()
        finally:
            if program.returncode is None:
                program.kill()
        assert program.returncode == 0, report.decode()
        assert b"10 selected / 10 total" in report
        assert await running.metric("twostep_router_requests_total", outcome="length") > 0
        assert await running.metric("twostep_router_in_flight_requests") == 0
