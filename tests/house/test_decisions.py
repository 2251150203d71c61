"""Decisions are numbered without gaps or doubles, in the file's name and in its heading alike."""

import re
from pathlib import Path

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"


def test_every_decision_has_a_number_of_its_own() -> None:
    pages = sorted(DECISIONS.glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        heading = re.match(r"# (\d+)\. ", page.read_text(encoding="utf-8"))
        assert heading, page.name
        assert int(heading[1]) == int(page.name[:4])
