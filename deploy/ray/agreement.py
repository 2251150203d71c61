"""Decides whether what Serve is told of a deployment lets its program do its part. Pure."""

from dataclasses import dataclass

from twostep.core.errors import ConfigError
from twostep.deploy.ray.config import AppConfig, Name

LOOK_S = 1.0
"""What a router's replica may take to ask Serve, and its router to read what was said."""
LAST_STEPS_S = 5.0
"""What a program may take beside draining: to hear of it, and to end."""
DRAIN_KEYS = {"prefill": "prefill.timers.drain_s", "decode": "decode.timers.drain_s", "router": "router.drain_s"}
POLICY = "twostep.deploy.ray.scaling:replicas_for_load"


@dataclass(frozen=True, slots=True)
class Terms:
    """What Serve is told of one deployment. `policy` is that of its `autoscaling_config`, empty without one."""

    graceful_shutdown_timeout_s: float
    graceful_shutdown_wait_loop_s: float
    policy: str = ""
    min_replicas: int = 1


def require_agreement(name: Name, terms: Terms, *, leave_s: float, stop_s: float) -> None:
    """Raise ConfigError where Serve would stop a program that routers still know, kill it before it has drained, or scale a
    pool by what it cannot see."""
    if terms.graceful_shutdown_wait_loop_s < leave_s:
        raise ConfigError(
            f"deployments: {name}: graceful_shutdown_wait_loop_s is {terms.graceful_shutdown_wait_loop_s:g}, but for"
            f" {leave_s:g} s routers may not know that the replica is to stop: raise it, or lower args.discovery_s"
        )
    if terms.graceful_shutdown_timeout_s < stop_s:
        raise ConfigError(
            f"deployments: {name}: graceful_shutdown_timeout_s is {terms.graceful_shutdown_timeout_s:g}, but the replica may"
            f" take {stop_s:g} s to leave and drain: raise it, or lower args.{DRAIN_KEYS[name]}"
        )
    if name != "router" and terms.policy and terms.policy != POLICY:
        raise ConfigError(
            f"deployments: {name}: autoscaling_config.policy.policy_function is {terms.policy}, which counts calls that nodes"
            f" do not get from Serve: give {POLICY}"
        )
    if terms.min_replicas < 1:
        raise ConfigError(
            f"deployments: {name}: autoscaling_config.min_replicas is {terms.min_replicas}: nothing would wake it, give 1"
        )


def leave_s(config: AppConfig) -> float:
    """Return for how long a replica that is to stop goes on as before: until every router knows, and places nothing there.

    A router that did not know would try a node that drains again and again, and use up a request's attempts.
    """
    return 2 * config.discovery_s + LOOK_S


def time_to_drain_s(config: AppConfig, name: Name) -> float:
    """Return how long a program may take from SIGTERM until it is gone; see docs/stopping.md."""
    if name == "router":
        return config.router.drain_s + LAST_STEPS_S
    timers = (config.prefill if name == "prefill" else config.decode).timers
    return timers.drain_s + 2 * timers.call_s + LAST_STEPS_S


def time_to_stop_s(config: AppConfig, name: Name) -> float:
    """Return the same, from Serve's wish on."""
    return leave_s(config) + time_to_drain_s(config, name)


def kill_after_s(config: AppConfig, name: Name) -> float:
    """Return after how long Serve should kill a replica that was told to stop, where its file does not say.

    Of a router's it first waits for the requests that came through it; the router itself learns of its end after them.
    """
    waiting_s = config.router.request_timeout_s if name == "router" else 0.0
    return waiting_s + time_to_stop_s(config, name)
