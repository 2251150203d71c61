"""What peers say about a handoff, as nobody of this version would say it."""

import pytest

from twostep.core.errors import TransferFailed
from twostep.node.handoff_messages import AbortState, Outcome
from twostep.node.handoff_wire import abort_from_pb, abort_state_from_pb, answer_from_pb, landed_from_pb
from twostep.proto import handoff_pb2 as pb


@pytest.mark.parametrize(("num_layers", "num_blocks", "num_bytes"), [(1, 2, 8), (2**31, 0, 0), (1, 1, 9), (0, 0, 8)])
def test_digests_of_other_cells_than_are_named_are_refused(num_layers: int, num_blocks: int, num_bytes: int) -> None:
    cells = pb.DigestBlock(num_layers=num_layers, num_blocks=num_blocks, digests=bytes(num_bytes))
    with pytest.raises(TransferFailed, match=f"{num_bytes} bytes are not digests of {num_layers} x {num_blocks} cells"):
        landed_from_pb(pb.LandedRequest(digests=cells))


def test_words_of_a_later_version_end_a_leg_and_prove_nothing() -> None:
    said = 99
    assert answer_from_pb(pb.DoneReply(outcome=said)).outcome is Outcome.ENDED  # type: ignore[arg-type]
    assert abort_from_pb(pb.AbortRequest(outcome=said)).answer.outcome is Outcome.ENDED  # type: ignore[arg-type]
    assert abort_state_from_pb(said) is AbortState.UNKNOWN  # type: ignore[arg-type]
