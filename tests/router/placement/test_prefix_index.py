"""What a router knows of the nodes' prefix caches."""

import random
import tracemalloc
from collections.abc import Sequence

from twostep.core.block_hash import hash_chain, prefix_root
from twostep.core.block_news import BlockNews
from twostep.core.ids import BlockHash, Incarnation, NodeId, NodeRef
from twostep.router.placement.prefix_index import PrefixIndex
from twostep.router.placement.prompt_hashes import Naming, PromptHashes

NAMING = Naming("m", "w", "", 32)
LARGE = Naming("m", "w", "", 64)
TOKENS = list(range(32 * 4 + 1))
PROMPT = PromptHashes(TOKENS)


def ref(name: str, incarnation: int = 1) -> NodeRef:
    return NodeRef(NodeId(name), Incarnation(incarnation))


A, B, C = ref("a"), ref("b"), ref("c")


def index(*nodes: NodeRef, max_bytes: int = 1 << 20) -> PrefixIndex:
    made = PrefixIndex(max_bytes)
    for node in nodes:
        made.meet(node, NAMING)
    return made


def stored(num_blocks: int, first: int = 0, tokens: Sequence[int] = TOKENS) -> BlockNews:
    """The first blocks of the prompt, one event each, from event `first` on."""
    chain = hash_chain(prefix_root("m", "w"), tokens)[:num_blocks]
    return BlockNews(first, first + num_blocks, tuple(chain))


def test_a_prompts_blocks_are_named_as_a_node_of_that_block_size_names_them() -> None:
    chain = hash_chain(prefix_root("m", "w"), TOKENS)
    assert PROMPT.blocks(NAMING) == chain
    assert PROMPT.blocks(LARGE) == [chain[1], chain[3]]


def test_a_hit_never_covers_the_last_token() -> None:
    assert len(PromptHashes(TOKENS[:64]).blocks(NAMING)) == 1
    assert PromptHashes(TOKENS[:64]).blocks(LARGE) == []
    assert len(PromptHashes(TOKENS[:65]).blocks(NAMING)) == 2


def test_prompts_of_another_salt_share_nothing() -> None:
    assert not set(PromptHashes(TOKENS, b"tenant").blocks(NAMING)) & set(PROMPT.blocks(NAMING))


def test_each_node_hits_the_longest_prefix_that_it_holds_without_a_hole() -> None:
    known = index(A, B, C)
    known.hear(A, stored(4))
    known.hear(B, stored(2))
    holed = stored(4)
    known.hear(C, BlockNews(0, 3, (holed.stored[0], holed.stored[2], holed.stored[3])))
    hits = known.match(PROMPT, now=0.0)
    assert [hits.tokens(node) for node in (A, B, C, ref("d"))] == [128, 64, 32, 0]
    assert hits.deepest == [A, B, C]


def test_where_many_hold_a_prefix_each_is_still_known_by_itself() -> None:
    nodes = [ref(f"n{number}") for number in range(100)]
    known = index(*nodes)
    for number, one in enumerate(nodes):
        known.hear(one, stored(1 + number % 4))
    hits = known.match(PROMPT, now=0.0)
    assert [hits.tokens(one) for one in nodes] == [32 * (1 + number % 4) for number in range(100)]
    assert {hits.tokens(one) for one in hits.deepest[:25]} == {128}


def test_nodes_of_different_block_sizes_are_found_side_by_side() -> None:
    known = index(A)
    known.meet(B, LARGE)
    known.hear(A, stored(3))
    chain = PROMPT.blocks(LARGE)
    known.hear(B, BlockNews(0, 2, tuple(chain)))
    hits = known.match(PROMPT, now=0.0)
    assert (hits.tokens(A), hits.tokens(B)) == (96, 128)


def test_what_is_evicted_is_no_longer_hit() -> None:
    known = index(A)
    news = stored(4)
    known.hear(A, news)
    assert known.hear(A, BlockNews(4, 6, evicted=news.stored[2:]))
    assert known.match(PROMPT, now=0.0).tokens(A) == 64


def test_missing_events_are_noticed_and_everything_is_told_again() -> None:
    known = index(A)
    news = stored(4)
    known.hear(A, news)
    assert known.next_event(A) == 4
    assert not known.hear(A, BlockNews(6, 7, evicted=news.stored[:1]))
    assert (known.next_event(A), known.num_gaps) == (0, 1)
    assert known.hear(A, BlockNews(0, 9, news.stored[:1], is_snapshot=True))
    assert (known.next_event(A), known.told(A)) == (9, frozenset(news.stored[:1]))


def test_a_dead_incarnation_is_forgotten_at_once_and_its_place_is_used_again() -> None:
    known = index(A, B)
    known.hear(A, stored(4))
    known.hear(B, stored(2))
    known.drop(A)
    again = ref("a", 2)
    known.meet(again, NAMING)
    hits = known.match(PROMPT, now=0.0)
    assert [hits.tokens(node) for node in (A, again, B)] == [0, 0, 64]
    known.drop(B)
    assert known.match(PROMPT, now=0.0).deepest == []
    assert known.num_bytes == 0


def test_what_was_sent_counts_before_the_node_tells_of_it_and_expires_where_it_never_does() -> None:
    known = index(A)
    known.note_sent(A, PROMPT, until=10.0)
    assert known.match(PROMPT, now=9.0).tokens(A) == 128
    assert known.match(PROMPT, now=10.0).tokens(A) == 0
    assert not known.tells(A)


def test_what_was_sent_again_lasts_longer_and_what_was_told_for_ever() -> None:
    known = index(A)
    known.note_sent(A, PROMPT, until=10.0)
    known.note_sent(A, PROMPT, until=20.0)
    known.hear(A, stored(2))
    assert known.match(PROMPT, now=15.0).tokens(A) == 128
    assert known.match(PROMPT, now=25.0).tokens(A) == 64


def test_a_snapshot_leaves_alone_what_is_under_way() -> None:
    known = index(A)
    known.hear(A, stored(1))
    known.note_sent(A, PROMPT, until=10.0)
    known.hear(A, BlockNews(0, 5, stored(1).stored, is_snapshot=True))
    assert known.match(PROMPT, now=5.0).tokens(A) == 128


def test_the_index_stays_within_its_memory_and_forgets_what_it_learnt_first() -> None:
    known = index(A, B, max_bytes=40_000)
    blocks = [BlockHash(random.Random(number).randbytes(16)) for number in range(400)]
    for number, block in enumerate(blocks):
        known.hear(A, BlockNews(number, number + 1, (block,)))
        assert known.num_bytes <= 40_000
    known.hear(B, stored(4))
    assert known.num_forgotten > 0
    assert blocks[0] not in known.told(A)
    assert blocks[-1] in known.told(A)
    assert known.match(PROMPT, now=0.0).tokens(B) == 128


def test_a_prompt_that_is_sent_again_and_again_takes_no_more_than_the_memory_either() -> None:
    known, soon = index(A, max_bytes=40_000), PromptHashes([2] * 65)
    known.note_sent(A, soon, until=10.0)
    tracemalloc.start()
    try:
        for number in range(1000):
            known.note_sent(A, PromptHashes([1] * 2049), until=1000.0 + number)
            assert known.num_bytes <= 40_000
        assert tracemalloc.get_traced_memory()[0] < 40_000
    finally:
        tracemalloc.stop()
    assert known.match(PromptHashes([1] * 2049), now=0.0).tokens(A) == 2048
    assert known.match(soon, now=0.0).tokens(A) == 0
    assert known.num_forgotten == 1


def test_a_prompt_without_a_block_leaves_no_note() -> None:
    known = index(A)
    known.note_sent(A, PromptHashes(TOKENS[:32]), until=5.0)
    assert known.num_bytes == 0


def test_random_news_agree_with_what_the_node_holds() -> None:
    chance, known = random.Random(7), index(A)
    held: set[BlockHash] = set()
    names, number = [BlockHash(bytes([value]) * 16) for value in range(12)], 0
    for _ in range(500):
        new, old = set(chance.sample(names, 3)), set(chance.sample(names, 3))
        held = (held - old) | new
        known.hear(A, BlockNews(number, number + 6, tuple(new), tuple(old - new)))
        number += 6
        assert known.told(A) == held
