"""Reads `targets.json`: which rows each benchmark has, in what unit, and what they must reach."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FILE = Path(__file__).parents[1] / "targets.json"

Subject = Literal["ours", "ratio", "excess"]
"""What a goal limits: our figure, ours divided by the peer's, or ours less the peer's."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The limit that `of` must keep. `limit` is in the row's unit, or a factor where `of` is the ratio."""

    of: Subject
    limit: float
    is_ceiling: bool

    def is_met(self, value: float) -> bool:
        return value <= self.limit if self.is_ceiling else value >= self.limit


@dataclass(frozen=True, slots=True)
class Target:
    """One row as it was promised. Without `goal` the figure is only published; without `peer_name` nobody is compared."""

    name: str
    unit: str
    goal: Goal | None
    peer_name: str | None

    @property
    def text(self) -> str:
        """Return the goal in a few characters, such as `<= 2 ms` or `<= 0.5 of vLLM`."""
        if self.goal is None:
            return "published"
        limit = f"{'<=' if self.goal.is_ceiling else '>='} {self.goal.limit:g}"
        if self.goal.of == "ours":
            return f"{limit} {self.unit}"
        return f"{limit} of {self.peer_name}" if self.goal.of == "ratio" else f"{limit} {self.unit} over {self.peer_name}"


def read_targets(benchmark: str, path: Path = FILE) -> tuple[Target, ...]:
    """Return the rows of `benchmark`. Raises LookupError for an unknown one, ValueError for a row that makes no sense."""
    return tuple(map(_target, json.loads(path.read_text(encoding="utf-8"))[benchmark]))


def read_published(benchmark: str, path: Path = FILE) -> Mapping[str, str]:
    """Return what others have published for rows of `benchmark`, by row, in words."""
    rows = json.loads(path.read_text(encoding="utf-8"))[benchmark]
    return {row["name"]: row["published"] for row in rows if row.get("published")}


def _target(told: Mapping[str, Any]) -> Target:
    name, peer_name = told["name"], told.get("peer")
    goal = _goal(name, told["target"]) if told.get("target") else None
    if goal and goal.of != "ours" and not peer_name:
        raise ValueError(f"row {name!r}: its target compares with a peer, but it names none")
    return Target(name, told["unit"], goal, peer_name)


def _goal(name: str, told: Mapping[str, Any]) -> Goal:
    limits = {key: told[key] for key in ("at_most", "at_least") if key in told}
    if len(limits) != 1 or told["of"] not in ("ours", "ratio", "excess"):
        raise ValueError(f"row {name!r}: a target has one of at_most and at_least, of ours, ratio or excess, not {told}")
    ((kind, limit),) = limits.items()
    return Goal(told["of"], float(limit), kind == "at_most")
