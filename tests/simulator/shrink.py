"""Makes a failing run shorter: leaves out faults and requests for as long as the same invariant is violated."""

from collections.abc import Callable
from dataclasses import replace

from twostep.tests.simulator.scenario import Scenario
from twostep.tests.simulator.simulation import simulate

Fails = Callable[[Scenario], bool]


def violates(invariant: str) -> Fails:
    """Return a check for runs that violate the same invariant first."""

    def fails(scenario: Scenario) -> bool:
        violations = simulate(scenario).violations
        return bool(violations) and violations[0].invariant == invariant

    return fails


def shrink(scenario: Scenario, fails: Fails) -> Scenario:
    """Return a scenario that still fails and from which nothing more can be left out, one thing at a time."""
    calmer = replace(scenario, sliced=0.0)
    shortest = calmer if scenario.sliced and fails(calmer) else scenario
    has_changed = True
    while has_changed:
        has_changed = False
        for shorter in _shorter(shortest):
            if fails(shorter):
                shortest, has_changed = shorter, True
                break
    return shortest


def _shorter(scenario: Scenario) -> list[Scenario]:
    faults, asks = scenario.faults, scenario.asks
    without_fault = [replace(scenario, faults=faults[:i] + faults[i + 1 :]) for i in range(len(faults))]
    without_ask = [replace(scenario, asks=asks[:i] + asks[i + 1 :]) for i in range(len(asks)) if len(asks) > 1]
    halves = [replace(scenario, faults=faults[: len(faults) // 2])] if len(faults) > 3 else []
    return [*halves, *without_fault, *without_ask]
