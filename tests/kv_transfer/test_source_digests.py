"""Digests made as KV is computed: they add up over chunks, stay with the block, and show what changed since."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from twostep.core.ids import BlockId
from twostep.core.ticket import TokenRange
from twostep.kv_transfer.source_digests import SourceDigests
from twostep.tests.kv_transfer.host_memory import HostMemory, compute
from twostep.tests.kv_transfer.nodes import layout

TABLE = [BlockId(b) for b in (5, 2, 7, 0)]
LAYERS = range(4)


def computed(chunks: list[TokenRange]) -> tuple[HostMemory, SourceDigests]:
    memory = HostMemory(layout(block_tokens=4), 8)
    digests = SourceDigests(memory, 8)
    for chunk in chunks:
        for layers in (range(3), range(3, 4)):
            compute(memory, digests, layers, chunk, TABLE, seed=1)
    return memory, digests


@given(st.sets(st.integers(1, 13)))
def test_chunks_add_up_to_the_digest_of_what_lies_there(cuts: set[int]) -> None:
    ends = [*sorted(cuts), 14]
    memory, digests = computed([TokenRange(start, end) for start, end in zip([0, *ends], ends, strict=False)])
    for missing in (TokenRange(0, 14), TokenRange(8, 14), TokenRange(4, 8)):
        assert np.array_equal(digests.of(LAYERS, missing, TABLE), memory.digest(LAYERS, missing, TABLE))


def test_a_block_that_is_used_anew_forgets_its_old_digest() -> None:
    memory, digests = computed([TokenRange(0, 14)])
    compute(memory, digests, LAYERS, TokenRange(0, 2), TABLE, seed=2)
    compute(memory, digests, LAYERS, TokenRange(2, 4), TABLE, seed=2)
    assert np.array_equal(digests.of(LAYERS, TokenRange(0, 4), TABLE), memory.digest(LAYERS, TokenRange(0, 4), TABLE))


def test_an_empty_run_changes_nothing() -> None:
    memory, digests = computed([TokenRange(0, 14)])
    digests.add(LAYERS, TokenRange(14, 14), TABLE)
    assert np.array_equal(digests.of(LAYERS, TokenRange(0, 14), TABLE), memory.digest(LAYERS, TokenRange(0, 14), TABLE))


def test_a_block_that_changed_since_it_was_computed_is_found() -> None:
    memory, digests = computed([TokenRange(0, 14)])
    assert digests.spoiled(TokenRange(4, 14), TABLE) == []
    memory.words[3, TABLE[2], 1, 0, 0] ^= 1
    assert digests.spoiled(TokenRange(4, 14), TABLE) == [1]
