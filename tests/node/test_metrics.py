from prometheus_client import generate_latest

from twostep.node.metrics import NodeMetrics


def test_two_nodes_of_one_process_count_apart() -> None:
    first, second = NodeMetrics(), NodeMetrics()
    first.steps.inc()
    assert first.registry.get_sample_value("twostep_steps_total") == 1
    assert second.registry.get_sample_value("twostep_steps_total") == 0


def test_gauges_are_read_when_somebody_scrapes() -> None:
    metrics, blocks = NodeMetrics(), {"free": 1}
    metrics.observe("kv_blocks", "Blocks.", "state", lambda: blocks)
    metrics.observe_value("queue_length", "Queue.", lambda: len(blocks))
    blocks["cached"] = 2
    page = generate_latest(metrics.registry).decode()
    assert 'twostep_kv_blocks{state="free"} 1.0\ntwostep_kv_blocks{state="cached"} 2.0\n' in page
    assert "twostep_queue_length 2.0\n" in page
