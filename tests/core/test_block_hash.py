from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostep.core.block_hash import HASH_BLOCK_TOKENS, hash_chain, prefix_root, token_digest
from twostep.core.ids import BlockHash

ROOT = prefix_root("model", "weights")
TOKENS = list(range(1000, 1000 + 3 * HASH_BLOCK_TOKENS + 5))


def test_only_full_blocks_are_hashed() -> None:
    assert [len(hash_chain(ROOT, TOKENS[:count])) for count in (0, 31, 32, 63, 64, len(TOKENS))] == [0, 0, 1, 1, 2, 3]


def test_each_hash_covers_its_parent_and_its_tokens_as_little_endian_words() -> None:
    parent, expected = ROOT, []
    for start in (0, 32, 64):
        words = b"".join(token.to_bytes(4, "little") for token in TOKENS[start : start + 32])
        parent = BlockHash(blake2b(parent + words, digest_size=16).digest())
        expected.append(parent)
    assert hash_chain(ROOT, TOKENS) == expected


def test_the_chain_of_a_prefix_is_a_prefix_of_the_chain() -> None:
    assert hash_chain(ROOT, TOKENS)[:2] == hash_chain(ROOT, TOKENS[:70])


@given(st.integers(0, 3 * HASH_BLOCK_TOKENS - 1))
def test_another_token_changes_its_block_and_all_later_ones_but_no_earlier(position: int) -> None:
    changed = TOKENS.copy()
    changed[position] += 1
    same = [one == other for one, other in zip(hash_chain(ROOT, TOKENS), hash_chain(ROOT, changed), strict=True)]
    block = position // HASH_BLOCK_TOKENS
    assert same == [True] * block + [False] * (3 - block)


def test_equal_blocks_after_different_prefixes_differ() -> None:
    first, second = hash_chain(ROOT, [7] * 64)
    assert first != second


def test_no_two_models_weights_adapters_or_tenants_share_a_root() -> None:
    roots = {
        prefix_root("model", "weights"),
        prefix_root("other", "weights"),
        prefix_root("model", "other"),
        prefix_root("model", "weights", "adapter"),
        prefix_root("model", "weights", "", b"tenant"),
        prefix_root("model", "weights", "adapter", b"tenant"),
        prefix_root("modelw", "eights"),
    }
    assert len(roots) == 7


def test_the_token_digest_tells_order_and_length() -> None:
    assert len({token_digest(tokens) for tokens in ([], [0], [0, 0], [1, 2], [2, 1])}) == 5


@pytest.mark.parametrize("token", [-1, 1 << 32])
def test_a_number_that_is_no_token_id_is_refused(token: int) -> None:
    with pytest.raises(OverflowError):
        token_digest([token])
