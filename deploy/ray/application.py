"""Builds the Serve application: `import_path: twostep.deploy.ray.application:build`."""

from typing import Any

from ray import serve

from twostep.deploy.ray.agreement import kill_after_s, leave_s
from twostep.deploy.ray.config import ROLES, AppConfig, Name, check_args
from twostep.deploy.ray.node_replica import NodeReplica
from twostep.deploy.ray.plan import has_own_port, plan_node, plan_router
from twostep.deploy.ray.router_replica import RouterReplica

HEALTH_PERIOD_S = 2.0
"""Serve replaces a replica after three failures: a program that has died is noticed within so many times this."""
NUM_STARTS = 3
"""How often Serve tries to start a replica: what keeps ours from starting is seldom chance."""
MARGIN = 64
"""How many more requests than a router serves reach it: it is the router who refuses them, with a Retry-After."""


def build(args: dict[str, Any]) -> serve.Application:
    """Return the application that `args`, the keys of `AppConfig`, describe. Raises ConfigError."""
    config = check_args(args)
    pools = [serve.deployment(NodeReplica, **_options(config, role)).bind(plan_node(role, config, args)) for role in ROLES]
    options = _options(config, "router") | {
        # A router computes little: by default Ray counts nothing for it.
        "ray_actor_options": {"num_cpus": 0},
        "max_ongoing_requests": config.router.max_in_flight + MARGIN,
        **({"max_replicas_per_node": 1} if has_own_port(args) else {"max_surge_percent": 100}),
    }
    return serve.deployment(serve.ingress()(RouterReplica), **options).bind(plan_router(config, args), *pools)


def _options(config: AppConfig, name: Name) -> dict[str, Any]:
    """Return what Serve is told of a deployment where its file says nothing."""
    return {
        "name": name,
        # How often Serve looks whether the replica still has calls, and only then tells it: a pause before the first look.
        "graceful_shutdown_wait_loop_s": leave_s(config),
        "graceful_shutdown_timeout_s": kill_after_s(config, name),
        "health_check_period_s": HEALTH_PERIOD_S,
        "max_constructor_retry_count": NUM_STARTS,
    }
