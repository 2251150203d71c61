from twostep.core.ids import RequestId
from twostep.prefill_node.prefix_check import blocks_to_check

A = RequestId("a")


def test_a_short_prefix_is_looked_at_as_a_whole_and_of_a_long_one_as_much_as_is_computed() -> None:
    assert blocks_to_check(3, 5, A) == range(3)
    assert len(blocks_to_check(100, 5, A)) == 5
    assert not blocks_to_check(0, 5, A)


def test_requests_that_share_a_prefix_look_at_all_of_it_together() -> None:
    seen = {block for number in range(200) for block in blocks_to_check(10, 2, RequestId(f"r{number}"))}
    assert seen == set(range(10))
