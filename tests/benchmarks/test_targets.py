import json
from pathlib import Path

import pytest

from twostep.benchmarks.harness.targets import FILE, Goal, Target, read_targets

BENCHMARKS = json.loads(FILE.read_text())


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_row_of_every_benchmark_can_be_read_and_has_its_own_name(benchmark: str) -> None:
    rows = read_targets(benchmark)
    assert len({row.name for row in rows}) == len(rows) == len(BENCHMARKS[benchmark])


@pytest.mark.parametrize(
    ("goal", "text"),
    [
        (Goal("ours", 2.0, is_ceiling=True), "<= 2 ms"),
        (Goal("ratio", 0.5, is_ceiling=True), "<= 0.5 of vLLM"),
        (Goal("ratio", 0.85, is_ceiling=False), ">= 0.85 of vLLM"),
        (Goal("excess", 2.0, is_ceiling=True), "<= 2 ms over vLLM"),
        (None, "published"),
    ],
)
def test_a_goal_reads_as_a_limit(goal: Goal | None, text: str) -> None:
    assert Target("step", "ms", goal, "vLLM").text == text


@pytest.mark.parametrize(
    "row",
    [
        {"name": "a", "unit": "ms", "target": {"of": "ratio", "at_most": 1}},
        {"name": "a", "unit": "ms", "target": {"of": "ours", "at_most": 1, "at_least": 0}},
        {"name": "a", "unit": "ms", "target": {"of": "theirs", "at_most": 1}},
    ],
)
def test_a_target_that_cannot_be_judged_is_refused(row: object, tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    path.write_text(json.dumps({"b": [row]}))
    with pytest.raises(ValueError, match="row 'a'"):
        read_targets("b", path)
