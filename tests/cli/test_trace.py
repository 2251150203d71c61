"""What `twostep trace` writes: events of Chrome's format, with times in microseconds."""

import json
from pathlib import Path
from typing import Any

import pytest

from twostep.cli import trace
from twostep.cli.main import main
from twostep.cli.node_client import Span, Step, Trace
from twostep.cli.perfetto import Heard, trace_events

PREFILL = Step(
    number=1, age_s=2.0, duration_s=0.5, gap_s=None, requests=1, decode_tokens=0, prompt_tokens=100, hit_tokens=32, preempted=0,
    token_budget=512,
)  # fmt: skip
MIXED = Step(
    number=2, age_s=1.25, duration_s=0.25, gap_s=0.25, requests=3, decode_tokens=2, prompt_tokens=50, hit_tokens=0, preempted=1,
    token_budget=512,
)  # fmt: skip
SPANS = (Span("req", 1, "queued", 3.0, 1.0), Span("req", 1, "computing", 2.0, 0.5))
P = Trace("p-0", (PREFILL, MIXED), SPANS)
D = Trace("d-0", (), (Span("req", 1, "filling", 1.0, 1.0),))


def events(kind: str, *heard: Heard) -> list[Any]:
    return [event for event in trace_events(heard) if event["ph"] == kind]


def test_each_step_is_a_slice_of_the_engines_thread_with_all_that_is_known_of_it() -> None:
    first, second = events("X", Heard(P, at=10.0))
    assert {key: first[key] for key in ("pid", "tid", "name", "ts", "dur")} == {
        "pid": 1, "tid": 1, "name": "prefill", "ts": 1e6, "dur": 0.5e6,
    }  # fmt: skip
    assert "gap ms" not in first["args"]
    assert (second["name"], second["ts"], second["dur"]) == ("decode + prefill", 1.75e6, 0.25e6)
    assert second["args"] == {
        "step": 2, "requests": 3, "decode tokens": 2, "prompt tokens": 50, "token budget": 512, "prefix hit tokens": 0,
        "preempted": 1, "gap ms": 250.0,
    }  # fmt: skip


def test_the_counter_of_tokens_falls_to_zero_only_where_work_ends() -> None:
    seen = [(event["ts"], event["args"]["decode"], event["args"]["prompt"]) for event in events("C", Heard(P, at=10.0))]
    assert seen == [(1e6, 0, 100), (1.75e6, 2, 50), (2e6, 0, 0)]


def test_a_request_is_one_slice_that_holds_its_phases() -> None:
    begins, ends = (events(kind, Heard(P, at=10.0)) for kind in "be")
    assert [(one["name"], one["ts"]) for one in begins] == [("req, attempt 1", 0), ("queued", 0), ("computing", 1e6)]
    assert [(one["name"], one["ts"]) for one in ends] == [("queued", 1e6), ("computing", 1.5e6), ("req, attempt 1", 1.5e6)]
    assert len({one["id"] for one in (*begins, *ends)}) == 1


def test_nodes_are_processes_on_one_time_axis() -> None:
    heard = Heard(P, at=10.0), Heard(D, at=10.5)
    names = [event for event in events("M", *heard) if event["name"] == "process_name"]
    assert [(event["pid"], event["args"]["name"]) for event in names] == [(1, "p-0"), (2, "d-0")]
    filling = events("b", *heard)[-1]
    assert (filling["pid"], filling["name"], filling["ts"]) == (2, "filling", 2.5e6)


def test_nodes_that_did_nothing_make_an_empty_trace() -> None:
    assert all(event["ph"] == "M" for event in trace_events([Heard(Trace("p-0", (), ()), at=10.0)]))


def test_the_command_writes_what_every_node_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    async def fetch(address: str, within_s: float | None, security: object) -> Trace:
        asked.append((address, within_s))
        return {"p:1": P, "d:1": D}[address]

    monkeypatch.setattr(trace, "fetch_trace", fetch)
    file = tmp_path / "trace.json"
    assert main(["trace", "p:1", "d:1", "--seconds", "5", "--out", str(file)]) == 0
    assert asked == [("p:1", 5.0), ("d:1", 5.0)]
    assert len([event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]) == 2
    assert capsys.readouterr().err == f"{file}: 2 steps, 3 phases of requests; open it at https://ui.perfetto.dev\n"


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_seconds_that_cannot_be_are_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "p:1", "--seconds", seconds]) == 2
    assert "--seconds" in capsys.readouterr().err
