"""`twostep plan`: the autoscaler's page in words, and fleets for a trace."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from twostep.cli.main import main
from twostep.core.status_page import StatusPage, Vitals

PAGE = {
    "status": "",
    "leader": True,
    "dry_run": False,
    "hold": "",
    "pools": {
        "prefill": {"replicas": 3, "need": 6, "target": 5, "why": ["5000 uncached tokens/s", "a step at a time"]},
        "decode": {"replicas": 2, "need": 2, "target": 2, "why": ["1000 tokens/s"]},
    },
}
RATES = ("--prefill-rate=1000", "--decode-step=0.01", "--decode-sequence=0.001", "--kv-tokens=10000")


@pytest.fixture
def url() -> Iterator[str]:
    pages = {"/plan": lambda: json.dumps(PAGE), "/other/plan": lambda: "[]"}
    page = StatusPage("127.0.0.1", 0, Vitals(stuck_s=60), CollectorRegistry(), pages)
    yield f"http://127.0.0.1:{page.port}"
    page.close()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    rows = ({"timestamp": 200 * index, "input_length": 500, "output_length": 20} for index in range(300))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.processes
def test_it_says_what_the_autoscaler_does_and_explained_why(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--url", url]) == 0
    assert capsys.readouterr().out == "prefill: from 3 to 5, 6 needed\ndecode: stays at 2, 2 needed\n"
    assert main(["plan", "--url", url, "--explain"]) == 0
    assert "  5000 uncached tokens/s\n  a step at a time\ndecode:" in capsys.readouterr().out


@pytest.mark.processes
def test_no_autoscaler_or_something_else_is_said_in_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for where, sentence in (("http://127.0.0.1:1", "is an autoscaler there?"), (f"{url}/other", "is not an autoscaler's page")):
        assert main(["plan", "--url", where]) == 1
        assert sentence in capsys.readouterr().err


def test_a_trace_gives_two_pools_their_ratio_and_whether_they_pay(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--trace", str(trace), *RATES]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "300 requests in 1 min: 2508 prompt and 100 output tokens a second"
    assert lines[2] == "separate pools: 3 prefill and 1 decode nodes, 4 in all (P:D 3), 100.0% in time"
    assert lines[3] == "nodes that do both: 3, 100.0% in time"
    assert lines[4] == "separate pools do not pay: 33% more nodes"


def test_where_no_fleet_is_enough_it_says_so(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--trace", str(trace), *RATES, "--ttft=0.1"]) == 1
    assert "neither keeps the targets" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (RATES[1:], "--prefill-rate: required with --trace, as measured on a node"),
        ((*RATES, "--ttft=0"), "--ttft: expected more than 0, found 0"),
        ((*RATES, "--attainment=1"), "--attainment: expected a share between 0 and 1, found 1"),
        ((*RATES, "--kv-tokens=0"), "--kv-tokens: expected more than 0, found 0"),
        ((*RATES, "--times=0"), "--times: expected at least 1, found 0"),
    ],
)
def test_bad_numbers_are_refused_by_name(
    trace: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert main(["plan", "--trace", str(trace), *arguments]) == 2
    assert sentence in capsys.readouterr().err
