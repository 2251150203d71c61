"""What `twostep ledger` prints."""

import json
import math
from dataclasses import replace

from rich.console import Console

from twostep.cli.ledger import as_json, holdings_table, summary
from twostep.cli.node_client import Holding, Ledger

BLOCKS = Holding("req-1", "running, leg sending", 2.5, (3, 4), 0, 0, 7, 2, "", "d@1", 0.0, 3)
EXTENT = Holding("req-2", "landing draining", 10.0, (), 4096, 8192, 9, 1, "p@1", "", 50.0, 0)
LEDGER = Ledger("d", 10, 7, 1, 2, 0, 1 << 20, 1 << 19, (BLOCKS, EXTENT))


def printed(*holdings: Holding) -> str:
    console = Console(width=200, highlight=False)
    with console.capture() as capture:
        console.print(holdings_table(holdings))
    return capture.get()


def test_the_summary_says_how_the_blocks_add_up() -> None:
    told = summary(LEDGER)
    assert told.startswith("d: 10 blocks = 7 free + 1 cached + 2 referenced, 0 without an owner;")
    assert told.endswith("524,288 of 1,048,576 landing bytes free")


def test_a_node_without_landing_space_says_nothing_of_it() -> None:
    assert "landing" not in summary(replace(LEDGER, landing_bytes=0, landing_free_bytes=0))


def test_the_oldest_owner_comes_first_with_all_that_is_known_of_it() -> None:
    _, extent, blocks = printed(BLOCKS, EXTENT).splitlines()
    for part in ("req-2", "landing draining", "10.0 s", "8,192 bytes at 4,096, generation 9, rests 50.0 s more", "from p@1"):
        assert part in extent
    for part in ("req-1", "running, leg sending", "2.5 s", "3 writes in flight", "to d@1"):
        assert part in blocks


def test_an_age_that_nobody_knows_is_said_to_be_unknown() -> None:
    orphan = replace(BLOCKS, age_s=math.inf)
    assert "unknown" in printed(orphan)
    assert json.loads(as_json(replace(LEDGER, holdings=(orphan,))))["holdings"][0]["age_s"] is None


def test_as_json_nothing_is_left_out() -> None:
    told = json.loads(as_json(LEDGER))
    assert told["orphaned_blocks"] == 0
    assert told["holdings"][0]["blocks"] == [3, 4]
    assert told["holdings"][1]["cooldown_left_s"] == 50.0
