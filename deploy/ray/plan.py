"""What each replica is told to run: the configuration of its program, made of the application's. Pure."""

from dataclasses import dataclass

from twostep.deploy.ray.agreement import time_to_drain_s, time_to_stop_s
from twostep.deploy.ray.config import AppConfig, Role, TargetsConfig, Values

NODE_WAIT_S = 60.0
"""How long requests wait for nodes by default: Serve stops some before it starts others, and replaces those that died."""
ANY_PORT = 0


@dataclass(frozen=True, slots=True)
class NodePlan:
    """`values` is the node's configuration but for what only its replica knows."""

    role: Role
    values: Values
    targets: TargetsConfig
    stop_s: float
    """How long the replica may take from Serve's wish to stop until it is gone."""
    drain_s: float
    """How much of that is its program's, from SIGTERM on."""


@dataclass(frozen=True, slots=True)
class RouterPlan:
    """`values` is the router's configuration but for what only its replica knows."""

    values: Values
    discovery_s: float
    reply_s: float
    """The longest that a reply may be silent."""
    stop_s: float
    drain_s: float


def plan_node(role: Role, config: AppConfig, values: Values) -> NodePlan:
    """`values` is what `config` was read from: a program keeps its own defaults for what is not said there."""
    section = values.get(role, {})
    engine = {**values.get("engine", {}), **section.get("engine", {})}
    told = {"model": config.model, **section, "engine": engine}
    return NodePlan(role, told, config.targets, time_to_stop_s(config, role), time_to_drain_s(config, role))


def plan_router(config: AppConfig, values: Values) -> RouterPlan:
    """The router's own ports are any free ones, open to this machine alone, unless they are given."""
    told = {"model": config.model, "port": ANY_PORT, "node_wait_s": NODE_WAIT_S, **values.get("router", {})}
    reply_s = config.router.request_timeout_s + config.router.keep_alive_s
    times_s = time_to_stop_s(config, "router"), time_to_drain_s(config, "router")
    return RouterPlan(told, config.discovery_s, reply_s, *times_s)


def has_own_port(values: Values) -> bool:
    """Return whether the router's own ports are given: then a machine has room for one router."""
    router = values.get("router", {})
    return bool(router.get("port") or router.get("grpc_port"))
