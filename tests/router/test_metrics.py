"""What the router publishes at /metrics."""

from twostep.router.metrics import Metrics


def test_what_is_counted_elsewhere_is_published_as_a_counter() -> None:
    metrics = Metrics()
    metrics.prefix_gaps.set(3)
    page = metrics.render().decode()
    assert "# TYPE twostep_router_prefix_index_gaps_total counter\ntwostep_router_prefix_index_gaps_total 3.0\n" in page


def test_two_routers_of_one_process_count_apart() -> None:
    first, second = Metrics(), Metrics()
    first.missing_bills.labels("d").inc()
    assert b'missing_bills_total{node="d"}' in first.render()
    assert b"missing_bills_total{" not in second.render()
