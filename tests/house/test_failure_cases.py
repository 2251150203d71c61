"""Every failure case that users of other systems have met is listed with the tests that show what twostep does instead."""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[2]
LAST_ROWS = {"A": 13, "B": 15, "C": 13, "D": 9, "E": 8, "F": 9}
CASES: dict[str, dict[str, Any]] = tomllib.loads((REPO / "tests/failure_cases.toml").read_text())


@cache
def functions_in(file: str) -> frozenset[str]:
    """Return the names of the functions that a file defines."""
    tree = ast.parse((REPO / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def named_tests() -> Iterator[tuple[str, str, str]]:
    for row, case in CASES.items():
        for test in case["tests"]:
            file, _, name = test.partition("::")
            yield row, file, name


def test_every_case_is_listed_once_in_order() -> None:
    assert list(CASES) == [f"{letter}{number}" for letter, last in LAST_ROWS.items() for number in range(1, last + 1)]


def test_every_named_test_exists() -> None:
    missing = [f"{row}: {file}::{name}" for row, file, name in named_tests() if name not in functions_in(file)]
    assert not missing


def test_no_case_names_a_test_twice() -> None:
    named = list(named_tests())
    assert len(named) == len(set(named))


def test_a_case_without_tests_names_the_feature_that_it_waits_for() -> None:
    assert [row for row, case in CASES.items() if not case["tests"] and not case.get("needs")] == []
    assert [row for row, case in CASES.items() if set(case) - {"case", "tests", "needs"}] == []
