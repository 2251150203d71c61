"""What a replica knows of itself from Serve, and what it makes of that for its program."""

from dataclasses import replace
from typing import Any

import ray.util
from ray import serve

from twostep.cli.model_store.catalogue import find_model
from twostep.deploy.ray.agreement import Terms, require_agreement
from twostep.deploy.ray.config import Name, Values


def replica_name(role: Name) -> str:
    """Return a name that no other replica has, nor had."""
    return f"{role}-{serve.get_replica_context().replica_tag}"


def machine_address() -> str:
    """Return the address under which the other machines of the Ray cluster reach this one."""
    address: str = ray.util.get_node_ip_address()
    return address


def require_serve_agrees(name: Name, *, drain_s: float, stop_s: float) -> None:
    """Raise ConfigError where what Serve was told of this deployment does not suit a program that takes `stop_s` to stop, of
    which it drains for `drain_s`."""
    # What is in force is known here alone: Serve's file may override what the application was built with.
    told: Any = serve.get_replica_context()._deployment_config  # noqa: SLF001 - Serve has no other way to ask
    scaling = told.autoscaling_config
    terms = Terms(told.graceful_shutdown_timeout_s, told.graceful_shutdown_wait_loop_s)
    if scaling:
        terms = replace(terms, policy=scaling.policy.policy_function, min_replicas=scaling.min_replicas)
    require_agreement(name, terms, leave_s=stop_s - drain_s, stop_s=stop_s)


def with_model_folder(values: Values) -> Values:
    """Say where on this machine the model is. Raises ConfigError when it is not."""
    model: str = values["model"]
    return values if model.startswith("fake") else {**values, "model": str(find_model(model))}
