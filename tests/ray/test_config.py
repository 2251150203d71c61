"""What the application's `args` may say, and what each program is told of them."""

import pytest

from twostep.core.errors import ConfigError
from twostep.deploy.ray.agreement import POLICY, Terms, kill_after_s, require_agreement, time_to_stop_s
from twostep.deploy.ray.config import AppConfig, TargetsConfig, Values, check_args
from twostep.deploy.ray.plan import NodePlan, RouterPlan, has_own_port, plan_node, plan_router

SERVES_OWN = "ray.serve.autoscaling_policy:default_autoscaling_policy"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"modle": "x"},
            "args: unknown key modle (value 'x'), known here: model, engine, prefill, decode, router, targets, discovery_s",
        ),
        (
            {"targets": {"decode_kv": 1.5}},
            "args: targets.decode_kv: Input should be less than or equal to 1, found 1.5",
        ),
        ({"decode": {"node_id": "d"}}, "args: decode.node_id cannot be set here: the replica decides it"),
        ({"router": {"prefill": ["a:1"]}}, "args: router.prefill cannot be set here: the replica decides it"),
        (
            {"prefill": {"transport": "local"}},
            "args: transport: local joins nodes of one process, and each replica has its own: use nixl or ucx",
        ),
        (
            {"decode": {"transport": "ucx"}},
            "args: prefill.transport is nixl and decode.transport ucx: give both the same",
        ),
    ],
)
def test_args_that_make_no_sense_are_refused_in_one_line(values: Values, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_args(values)
    assert str(refused.value) == message


def test_nodes_get_their_own_section_over_what_is_short_for_it() -> None:
    values: Values = {
        "model": "fake",
        "engine": {"dtype": "float32", "kv_bytes": 1 << 20},
        "decode": {"engine": {"kv_bytes": 2 << 20}},
    }
    config = check_args(values)
    prefill = {"model": "fake", "engine": {"dtype": "float32", "kv_bytes": 1 << 20}}
    decode = {"model": "fake", "engine": {"dtype": "float32", "kv_bytes": 2 << 20}}
    assert plan_node("prefill", config, values) == NodePlan("prefill", prefill, TargetsConfig(), 137.0, 135.0)
    assert plan_node("decode", config, values) == NodePlan("decode", decode, TargetsConfig(), 137.0, 135.0)


def test_a_router_takes_any_port_and_waits_for_nodes_unless_it_is_told_otherwise() -> None:
    assert plan_router(AppConfig(model="fake"), {}) == RouterPlan(
        {"model": "fake", "port": 0, "node_wait_s": 60.0}, discovery_s=0.5, reply_s=615.0, stop_s=37.0, drain_s=35.0
    )
    told = {"router": {"port": 8001, "node_wait_s": 5}}
    assert plan_router(check_args(told), told).values == {"model": "smollm2", "port": 8001, "node_wait_s": 5}
    assert [has_own_port(one) for one in ({}, {"router": {"port": 0}}, told, {"router": {"grpc_port": 1}})] == [
        *(False, False),
        *(True, True),
    ]


def test_serve_kills_nobody_by_default_before_it_must_have_ended() -> None:
    config = check_args(
        {"prefill": {"timers": {"drain_s": 10, "call_s": 1}}, "router": {"drain_s": 5, "request_timeout_s": 100}}
    )
    assert {name: kill_after_s(config, name) for name in ("prefill", "decode", "router")} == {  # type: ignore[arg-type]
        "prefill": 19.0,
        "decode": 137.0,
        "router": 112.0,
    }
    assert time_to_stop_s(config, "router") == 12.0


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (
            Terms(20, 2),
            "deployments: decode: graceful_shutdown_timeout_s is 20, but the replica may take 137 s to leave and drain:"
            " raise it, or lower args.decode.timers.drain_s",
        ),
        (
            Terms(200, 0.1),
            "deployments: decode: graceful_shutdown_wait_loop_s is 0.1, but for 2 s routers may not know that the replica is to"
            " stop: raise it, or lower args.discovery_s",
        ),
        (
            Terms(200, 2, SERVES_OWN),
            f"deployments: decode: autoscaling_config.policy.policy_function is {SERVES_OWN}, which counts calls that nodes do"
            f" not get from Serve: give {POLICY}",
        ),
        (
            Terms(200, 2, POLICY, 0),
            "deployments: decode: autoscaling_config.min_replicas is 0: nothing would wake it, give 1",
        ),
    ],
)
def test_a_deployment_whose_nodes_could_not_drain_or_be_scaled_is_refused(terms: Terms, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        require_agreement("decode", terms, leave_s=2, stop_s=137)
    assert str(refused.value) == message


def test_a_deployment_that_gives_its_nodes_time_is_accepted() -> None:
    require_agreement("decode", Terms(137, 2, POLICY), leave_s=2, stop_s=137)
    require_agreement("router", Terms(35.5, 2, SERVES_OWN), leave_s=2, stop_s=35.5)
