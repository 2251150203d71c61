"""A network for a test; and, at the end of a run, aloud, which tests could not have one and why."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from twostep.tests.chaos.network import Network, network

NOT_ALLOWED = "no network namespaces can be made here"


@pytest.fixture
def net() -> Iterator[Network]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(network())
        except OSError as cause:
            pytest.skip(f"{NOT_ALLOWED}: {cause}")
        yield made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A skipped test shows as one letter; that nobody tested partitions must not go unnoticed."""
    told = [str(report.longrepr[2]) for report in terminalreporter.getreports("skipped") if isinstance(report.longrepr, tuple)]
    for reason, count in Counter(reason for reason in told if NOT_ALLOWED in reason).items():
        terminalreporter.write_line(f"{count} tests of partitions were not run: {reason}", yellow=True)
