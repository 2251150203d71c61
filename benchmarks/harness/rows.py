"""Decides what a row says, from what was measured and what was promised. Pure."""

from dataclasses import dataclass
from statistics import median

from twostep.benchmarks.harness.targets import Target


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure per round, ours and the peer's in the row's unit; `num_failed` counts errors and dropped requests."""

    ours: tuple[float, ...]
    peer: tuple[float, ...] = ()
    num_failed: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Missed:
    """The measurement itself broke: a miss."""

    why: str


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """Nothing was tried, for a reason that says nothing about us."""

    why: str


Outcome = Measured | Missed | Unmeasured


@dataclass(frozen=True, slots=True)
class Row:
    """`ratio` is ours divided by the peer's: the median over rounds, and its range. `met` is None where nothing can be said."""

    name: str
    unit: str
    ours: float | None
    peer: float | None
    peer_name: str | None
    ratio: float | None
    ratio_range: tuple[float, float] | None
    target: str
    met: bool | None
    note: str


def make_row(target: Target, outcome: Outcome) -> Row:
    """Return the row of `target`. An error is a miss; where the target's peer did not run, nobody knows."""
    if isinstance(outcome, Unmeasured):
        return _blank(target, None, outcome.why)
    if isinstance(outcome, Missed):
        return _blank(target, False, outcome.why)
    ours = median(outcome.ours)
    peer = median(outcome.peer) if outcome.peer else None
    ratios = _ratios(outcome)
    ratio = median(ratios) if ratios else None
    return Row(
        name=target.name,
        unit=target.unit,
        ours=ours,
        peer=peer,
        peer_name=target.peer_name,
        ratio=ratio,
        ratio_range=(min(ratios), max(ratios)) if ratios else None,
        target=target.text,
        met=_met(target, outcome, ours, peer, ratio),
        note="; ".join(filter(None, (_complaint(target, outcome), outcome.note))),
    )


def _blank(target: Target, met: bool | None, why: str) -> Row:
    return Row(target.name, target.unit, None, None, target.peer_name, None, None, target.text, met, why)


def _ratios(measured: Measured) -> list[float]:
    """Return the ratio of each round: both sides of one round saw the same machine."""
    return [ours / peer for ours, peer in zip(measured.ours, measured.peer, strict=False) if peer]


def _met(target: Target, measured: Measured, ours: float, peer: float | None, ratio: float | None) -> bool | None:
    if measured.num_failed:
        return False
    if target.goal is None:
        return None
    value = {"ours": ours, "ratio": ratio, "excess": None if peer is None else ours - peer}[target.goal.of]
    return None if value is None else target.goal.is_met(value)


def _complaint(target: Target, measured: Measured) -> str:
    if measured.num_failed:
        return f"{measured.num_failed} failed"
    return f"{target.peer_name} did not run here" if target.peer_name and not measured.peer else ""
