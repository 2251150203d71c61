import json

from twostep.benchmarks.harness.report import Report
from twostep.benchmarks.harness.rows import Measured, Unmeasured, make_row
from twostep.benchmarks.harness.targets import Goal, Target

STEP = Target("step", "ms", Goal("ratio", 0.5, is_ceiling=True), "vLLM")
HOP = Target("hop", "ms", Goal("ours", 2.0, is_ceiling=True), None)
MEASURED = Measured(ours=(1.23456, 1.5), peer=(2.0, 3.0))
REPORT = Report(
    benchmark="cpu",
    is_quick=True,
    machine={"cores": "2"},
    peaks={"read GB/s": 40.123},
    rows=[make_row(STEP, MEASURED), make_row(HOP, Unmeasured("not measured in this run"))],
    measured={"step": MEASURED},
)


def test_the_table_shows_every_row_and_a_line_for_each_that_needs_a_word() -> None:
    assert REPORT.as_table().splitlines() == [
        "machine: cores 2",
        "peaks: read GB/s 40.1",
        "",
        "| row  | unit | ours  | peer | peer is | ratio (range)          | target         | met |",
        "| ---- | ---- | ----- | ---- | ------- | ---------------------- | -------------- | --- |",
        "| step | ms   | 1.367 | 2.5  | vLLM    | 0.5586 (0.5 to 0.6173) | <= 0.5 of vLLM | NO  |",
        "| hop  | ms   | -     | -    | -       | -                      | <= 2 ms        | -   |",
        "",
        "- hop: not measured in this run",
    ]


def test_the_json_holds_the_rows_as_the_targets_ask_for_them_and_every_sample() -> None:
    told = json.loads(REPORT.as_json())
    assert (told["machine"], told["peaks"], told["quick"]) == ({"cores": "2"}, {"read GB/s": 40.12}, True)
    asked = ("name", "unit", "ours", "peer", "peer_name", "ratio", "target", "met")
    assert [[row[key] for key in asked] for row in told["rows"]] == [
        ["step", "ms", 1.367, 2.5, "vLLM", 0.5586, "<= 0.5 of vLLM", False],
        ["hop", "ms", None, None, None, None, "<= 2 ms", None],
    ]
    assert told["samples"] == {"step": {"ours": [1.235, 1.5], "peer": [2.0, 3.0]}}
