"""One page of several workers' pages."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from twostep.router.metrics import Metrics
from twostep.router.workers.joint_pages import joint_metrics, joint_readiness, latest_story


def page(num_requests: int, in_flight: int) -> bytes:
    metrics = Metrics()
    metrics.requests.labels('a "quoted" {outcome}\n').inc(num_requests)
    metrics.in_flight.set(in_flight)
    metrics.ttft.observe(0.1)
    return metrics.render()


def test_every_sample_is_labelled_with_its_worker_and_no_family_is_told_twice() -> None:
    families = list(text_string_to_metric_families(joint_metrics({0: page(3, 1), 2: page(5, 0)}).decode()))
    assert len({family.name for family in families}) == len(families)
    samples = [sample for family in families for sample in family.samples]
    alone = [sample for family in text_string_to_metric_families(page(1, 1).decode()) for sample in family.samples]
    assert len(samples) == 2 * len(alone)
    assert {sample.labels["worker"] for sample in samples} == {"0", "2"}
    found = {
        (sample.labels["worker"], sample.labels["outcome"]): sample.value
        for sample in samples
        if sample.name == "twostep_router_requests_total"
    }
    assert found == {("0", 'a "quoted" {outcome}\n'): 3, ("2", 'a "quoted" {outcome}\n'): 5}
    in_flight = {sample.labels["worker"]: sample.value for sample in samples if sample.name.endswith("in_flight_requests")}
    assert in_flight == {"0": 1, "2": 0}


def test_a_family_that_one_worker_alone_tells_of_is_told_of_it() -> None:
    joint = joint_metrics({0: b"# HELP a A.\n# TYPE a gauge\na 1.0\n", 1: b"# HELP b B.\n# TYPE b gauge\n"})
    assert joint == b'# HELP a A.\n# TYPE a gauge\na{worker="0"} 1.0\n# HELP b B.\n# TYPE b gauge\n'


def report(*, ready: bool, pairs: int) -> dict[str, Any]:
    return {"ready": ready, "proven_pairs": pairs, "nodes": [f"{pairs} pairs"]}


def test_the_router_is_ready_when_all_its_workers_are() -> None:
    good, better, bad = report(ready=True, pairs=1), report(ready=True, pairs=2), report(ready=False, pairs=0)
    assert joint_readiness({0: better, 1: good}) == {**good, "workers": {"0": True, "1": True}}
    assert joint_readiness({0: better, 1: bad}) == {**bad, "workers": {"0": True, "1": False}}


def test_a_worker_that_does_not_answer_is_not_ready() -> None:
    good = report(ready=True, pairs=1)
    assert joint_readiness({0: good, 1: None}) == {**good, "ready": False, "workers": {"0": True, "1": False}}


def test_of_requests_of_one_name_the_latest_is_meant() -> None:
    stories = [{"arrived_at": 5.0, "request": "old"}, {"arrived_at": 7.0, "request": "new"}, {"arrived_at": 6.0}]
    assert latest_story(stories) == stories[1]
    assert latest_story([]) is None
