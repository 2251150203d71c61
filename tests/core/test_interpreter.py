"""What a program asks of the interpreter."""

import gc
import sys
from collections.abc import Iterator

import pytest

from twostep.core.interpreter import SWITCH_S, keep_loaded, take_short_turns


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)
    gc.unfreeze()


def test_threads_take_short_turns() -> None:
    take_short_turns()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)


def test_a_collection_leaves_out_what_was_loaded_and_still_finds_what_comes_later() -> None:
    keep_loaded()
    assert gc.get_freeze_count() > 10_000
    later: list[object] = []
    later.append(later)
    assert any(one is later for one in gc.get_objects())
    assert len(gc.get_objects()) < gc.get_freeze_count()
