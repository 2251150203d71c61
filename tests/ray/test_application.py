"""What Serve is told of each deployment where its file says nothing."""

from typing import Any

import pytest
from ray import serve

from twostep.core.errors import ConfigError
from twostep.deploy.ray.application import build


def ingress(args: dict[str, Any]) -> serve.Deployment:
    return build(args)._bound_deployment


def pools(args: dict[str, Any]) -> list[serve.Deployment]:
    _, *bound = ingress(args).init_args
    return [pool._bound_deployment for pool in bound]


def test_the_router_is_the_ingress_and_knows_both_pools() -> None:
    assert ingress({}).name == "router"
    assert [pool.name for pool in pools({})] == ["prefill", "decode"]


def test_every_replica_has_time_to_leave_and_to_drain() -> None:
    args = {"discovery_s": 0.25, "decode": {"timers": {"drain_s": 10, "call_s": 1}}}
    decode = pools(args)[1]._deployment_config
    assert (decode.graceful_shutdown_wait_loop_s, decode.graceful_shutdown_timeout_s) == (1.5, 18.5)


def test_a_router_refuses_what_is_too_much_itself_and_takes_no_core() -> None:
    router = ingress({"router": {"max_in_flight": 8}})
    assert router.max_ongoing_requests == 72
    assert router.ray_actor_options == {"num_cpus": 0}


def test_a_new_router_starts_before_the_old_one_ends_unless_both_would_want_the_same_port() -> None:
    free, taken = ingress({}), ingress({"router": {"port": 8001}})
    assert (free._deployment_config.max_surge_percent, free._replica_config.max_replicas_per_node) == (100, None)
    assert (taken._deployment_config.max_surge_percent, taken._replica_config.max_replicas_per_node) == (0, 1)


def test_args_as_serve_runs_command_line_gives_them_are_taken() -> None:
    [prefill, _] = pools({"model": "fake", "discovery_s": "0.5"})
    assert prefill.init_args[0].values == {"model": "fake", "engine": {}}
    with pytest.raises(ConfigError, match="unknown key modle"):
        build({"modle": "fake"})
