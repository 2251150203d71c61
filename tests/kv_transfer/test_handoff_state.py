"""The table of legal moves, against the picture of it in words, and over random walks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostep.kv_transfer.handoff_state import LEGAL_MOVES, HandoffState, IllegalMove, move

S = HandoffState
DRAWN = {
    (S.QUEUED, S.RESERVED),
    (S.RESERVED, S.FILLING),
    (S.FILLING, S.COMPLETE),
    (S.COMPLETE, S.ATTACHED),
    (S.RESERVED, S.ATTACHED),
    (S.FILLING, S.RESERVED),
    (S.COMPLETE, S.RESERVED),
    (S.ATTACHED, S.QUEUED),
} | {(state, S.FREED) for state in S if state is not S.FREED}


@pytest.mark.parametrize("before", S)
@pytest.mark.parametrize("after", S)
def test_exactly_the_drawn_moves_are_legal(before: HandoffState, after: HandoffState) -> None:
    if (before, after) in DRAWN:
        assert move(before, after) is after
    else:
        with pytest.raises(IllegalMove, match=f"from {before} to {after}"):
            move(before, after)


@given(st.lists(st.sampled_from(list(S)), max_size=30))
def test_no_walk_attaches_what_was_not_reserved_or_leaves_the_end(wishes: list[HandoffState]) -> None:
    state, reserved_since_queued = S.QUEUED, False
    for wish in wishes:
        if wish not in LEGAL_MOVES[state]:
            with pytest.raises(IllegalMove):
                move(state, wish)
            continue
        assert state is not S.FREED
        state = move(state, wish)
        reserved_since_queued = state is S.RESERVED or (reserved_since_queued and state is not S.QUEUED)
        assert state is not S.ATTACHED or reserved_since_queued


def test_every_state_can_be_freed_in_one_move() -> None:
    assert [state for state in S if S.FREED not in LEGAL_MOVES[state]] == [S.FREED]
