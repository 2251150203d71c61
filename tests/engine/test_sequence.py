"""One sequence's arithmetic, its phases and its hashes."""

import pytest

from twostep.core.block_hash import hash_chain, prefix_root
from twostep.core.ids import BlockId, RequestId
from twostep.core.request import FinishReason, Request, SamplingParams, StopRules
from twostep.engine.batch import Chunk, Draw
from twostep.engine.sequence import Phase, PrefixChain, Sequence

ROOT = prefix_root("model", "weights")
SAMPLING = SamplingParams(seed=1)


def sequence(prompt: tuple[int, ...] = (1, 2, 3), output_tokens: tuple[int, ...] = (), max_tokens: int = 9) -> Sequence:
    request = Request(RequestId("r"), prompt, SAMPLING, StopRules(max_tokens), output_tokens)
    return Sequence(request, PrefixChain(ROOT, 32), arrival=1, since=0.0, blocks=[BlockId(5)])


def test_only_the_chunk_that_catches_up_asks_for_a_draw() -> None:
    one = sequence()
    assert one.chunk(2) == Chunk(RequestId("r"), (1, 2), 0, (BlockId(5),), None)
    one.num_computed = 2
    assert one.chunk(1) == Chunk(RequestId("r"), (3,), 2, (BlockId(5),), Draw(SAMPLING, index=0))


def test_the_first_draw_after_forced_tokens_has_their_number_as_index() -> None:
    one = sequence(output_tokens=(7, 8))
    assert one.chunk(5).tokens == (1, 2, 3, 7, 8)
    assert one.chunk(5).draw == Draw(SAMPLING, index=2)


def test_forced_tokens_count_towards_the_length_limit() -> None:
    one = sequence(output_tokens=(7, 8), max_tokens=4)
    assert one.append(9) is None
    assert one.append(9) is FinishReason.LENGTH


def test_prompt_and_forced_tokens_are_told_apart_from_decoded_ones() -> None:
    one = sequence(output_tokens=(7,))
    one.append(9)
    assert one.num_prompt_tokens(one.chunk(5)) == 4
    one.num_computed = 4
    assert one.num_prompt_tokens(one.chunk(1)) == 0


@pytest.mark.parametrize(
    ("start", "to"),
    [
        (Phase.RESERVED, Phase.PREEMPTED),
        (Phase.RESERVED, Phase.RESTING),
        (Phase.RUNNING, Phase.RESERVED),
        (Phase.RESTING, Phase.RUNNING),
        (Phase.PREEMPTED, Phase.RESTING),
        (Phase.ENDING, Phase.RUNNING),
        (Phase.RELEASED, Phase.RUNNING),
        (Phase.RELEASED, Phase.RELEASED),
    ],
)
def test_an_illegal_move_names_the_request_and_both_phases(start: Phase, to: Phase) -> None:
    one = sequence()
    one.phase = start
    with pytest.raises(ValueError, match=f"r cannot go from {start} to {to}"):
        one.move_to(to)


def test_a_chain_that_grows_equals_one_made_at_once() -> None:
    tokens = list(range(200))
    chain = PrefixChain(ROOT, 32)
    for end in (10, 31, 32, 33, 100, 200):
        assert chain.blocks(tokens[:end]) == hash_chain(ROOT, tokens[:end])


def test_a_big_blocks_hash_is_that_of_its_last_hash_block() -> None:
    tokens = list(range(200))
    small = hash_chain(ROOT, tokens)
    assert PrefixChain(ROOT, 64).blocks(tokens) == [small[1], small[3], small[5]]
    assert PrefixChain(ROOT, 96).blocks(tokens) == [small[2], small[5]]
