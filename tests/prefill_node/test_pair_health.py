from twostep.prefill_node.pair_health import PairHealth, PairLimits


def health(*mismatches: float) -> PairHealth:
    pair = PairHealth(PairLimits(max_mismatches=3, window_s=60.0))
    for at in mismatches:
        pair.note_mismatch(at)
    return pair


def test_a_pair_is_bad_when_too_many_mismatches_lie_within_the_window() -> None:
    assert not health(0.0, 1.0).is_bad(1.0)
    assert health(0.0, 1.0, 60.0).is_bad(60.0)


def test_mismatches_that_are_long_past_do_not_count() -> None:
    assert not health(0.0, 30.0, 60.1).is_bad(60.1)
    assert health(0.0, 30.0, 60.1, 61.0).is_bad(61.0)


def test_a_pair_that_was_forgiven_begins_afresh() -> None:
    pair = health(0.0, 1.0, 2.0)
    pair.forgive()
    pair.note_mismatch(3.0)
    assert not pair.is_bad(3.0)
