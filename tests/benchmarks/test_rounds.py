import pytest

from twostep.benchmarks.harness.rounds import alternate, percentile, repeat


async def test_both_sides_run_in_turn_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []

    async def ours() -> float:
        calls.append("A")
        return float(len(calls))

    async def peer() -> float:
        calls.append("B")
        return float(len(calls))

    measured = await alternate(ours, peer, rounds=2)
    assert calls == ["A", "B"] * 3
    assert (measured.ours, measured.peer) == ((3.0, 5.0), (4.0, 6.0))
    assert (await repeat(ours, rounds=2)).ours == (8.0, 9.0)


@pytest.mark.parametrize(("percent", "value"), [(50, 50.0), (99, 99.0), (99.5, 100.0), (100, 100.0), (0, 1.0)])
def test_a_percentile_is_the_smallest_value_that_reaches_it(percent: float, value: float) -> None:
    assert percentile([float(i) for i in range(100, 0, -1)], percent) == value


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
