from prometheus_client import generate_latest

from twostep.engine.config import EngineConfig
from twostep.engine.device_report import DeviceReport
from twostep.engine.engine import Engine
from twostep.engine.fake_runner import FakeModel, FakeRunner
from twostep.engine.step_record import StepRecord
from twostep.node.gauges import observe_device, observe_engine
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


def test_what_is_counted_elsewhere_is_published_as_counters() -> None:
    metrics, counts = NodeMetrics(), {"prompt": 1}
    metrics.observe_counts("misses", "Misses.", "reason", lambda: counts)
    metrics.observe_count("hits", "Hits.", lambda: len(counts))
    counts["prompt"] = 3
    page = generate_latest(metrics.registry).decode()
    assert '# TYPE twostep_misses_total counter\ntwostep_misses_total{reason="prompt"} 3.0\n' in page
    assert "# TYPE twostep_hits_total counter\ntwostep_hits_total 1.0\n" in page


def test_a_step_is_counted_with_its_tokens_and_a_gap_only_where_there_was_work() -> None:
    metrics = NodeMetrics()
    metrics.observe_step(StepRecord(1, 0.0, 0.3, None, 1, 0, 100, 32, 0, 512))
    metrics.observe_step(StepRecord(2, 0.5, 0.1, 0.2, 3, 2, 50, 0, 1, 256))
    expected = {
        "twostep_steps_total": 2,
        "twostep_step_duration_seconds_sum": 0.4,
        "twostep_step_gap_seconds_count": 1,
        "twostep_step_gap_seconds_sum": 0.2,
        "twostep_step_requests_sum": 4,
        "twostep_step_token_budget": 256,
        "twostep_prompt_tokens_computed_total": 150,
        "twostep_tokens_decoded_total": 2,
        "twostep_preemptions_total": 1,
    }
    assert {name: metrics.registry.get_sample_value(name) for name in expected} == expected


def test_a_node_tells_where_its_memory_went() -> None:
    config = EngineConfig(kv_bytes=1 << 20)
    engine = Engine(FakeRunner(FakeModel(), config, landing_bytes=1 << 16), config, clock=lambda: 0.0)
    metrics = NodeMetrics()
    observe_engine(metrics, engine, frozenset)
    told = {
        use: metrics.registry.get_sample_value("twostep_memory_bytes", {"what": use}) for use in engine.runner.memory.by_use()
    }
    assert (told["landing"], told["kv"]) == (1 << 16, engine.runner.kv.num_blocks * engine.runner.kv.layout.block_bytes)
    assert sum(size or 0 for size in told.values()) == engine.runner.memory.available


def test_a_device_tells_of_its_graphs_its_memory_and_the_lack_of_it() -> None:
    metrics, report = NodeMetrics(), DeviceReport(capture_bytes=7, capture_s=1.5)
    observe_device(metrics, report)
    report.graph_hits, report.graph_rows, report.padding_rows = 3, 8, 2
    report.graph_misses["prompt"] += 4
    report.out_of_memory["shrunk"] += 1
    read = metrics.registry.get_sample_value
    assert (read("twostep_graph_hits_total"), read("twostep_graph_padding_share")) == (3.0, 0.25)
    assert (read("twostep_graph_capture_bytes"), read("twostep_graph_capture_seconds")) == (7.0, 1.5)
    assert read("twostep_graph_misses_total", {"reason": "prompt"}) == 4.0
    assert read("twostep_out_of_memory_total", {"outcome": "shrunk"}) == 1.0
