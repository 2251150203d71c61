"""The metrics' documentation names exactly what nodes publish."""

import re
from pathlib import Path

import pytest

from twostep.tests.handoff.pair import running_pair
from twostep.tests.handoff.requests import DECODE, MODEL, PREFILL

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


async def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    async with running_pair(MODEL, PREFILL, DECODE) as pair:
        families = [family for node in (pair.prefill, pair.decode) for family in node.parts.metrics.registry.collect()]
    published = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    documented = set(re.findall(r"^\| `(twostep_\w+)", PAGE.read_text(), re.MULTILINE))
    assert documented == published
