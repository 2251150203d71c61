"""Checks a Serve file before Serve reads it: its application's `args` are ours, its `deployments` let our programs drain.

Serve passes over keys that it does not know; here they are mistakes.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.schema import (
    DeploymentSchema,
    HTTPOptionsSchema,
    LoggingConfig,
    RayActorOptionsSchema,
    ServeApplicationSchema,
    ServeDeploySchema,
    gRPCOptionsSchema,
)

from twostep.core.config import read_values
from twostep.core.errors import ConfigError
from twostep.deploy.ray.agreement import Terms, kill_after_s, leave_s, require_agreement, time_to_stop_s
from twostep.deploy.ray.config import AppConfig, Name, check_args

IMPORT_PATH = "twostep.deploy.ray.application:build"
NAMES: tuple[Name, ...] = ("prefill", "decode", "router")
SECTIONS: Mapping[str, type[BaseModel]] = {
    "http_options": HTTPOptionsSchema,
    "grpc_options": gRPCOptionsSchema,
    "applications": ServeApplicationSchema,
    "deployments": DeploymentSchema,
    "ray_actor_options": RayActorOptionsSchema,
    "autoscaling_config": AutoscalingConfig,
    "policy": AutoscalingPolicy,
    "request_router_config": RequestRouterConfig,
    "logging_config": LoggingConfig,
}
"""Serve's own classes for the parts of a file, by key."""


def check_serve_file(path: Path) -> int:
    """Return how many of the file's applications are ours. Raises ConfigError, naming the file and what to change."""
    return check_serve_values(read_values(path), str(path))


def check_serve_values(values: dict[str, Any], source: str) -> int:
    """The same for what a file says, `source` being where that was read."""
    for mistake in _unknown(values, ServeDeploySchema, ""):
        raise ConfigError(f"{source}: {mistake}")
    try:
        ServeDeploySchema.model_validate(values)
    except ValidationError as cause:
        raise ConfigError(f"{source}: {_first(cause)}") from cause
    ours = [one for one in values["applications"] if one["import_path"] == IMPORT_PATH]
    for application in ours:
        try:
            _check_application(application)
        except (ConfigError, ValidationError) as cause:
            raise ConfigError(f"{source}: {_first(cause)}") from cause
    return len(ours)


def _first(mistake: ConfigError | ValidationError) -> str:
    if isinstance(mistake, ConfigError):
        return str(mistake)
    first = mistake.errors(include_url=False)[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))


def _check_application(application: Mapping[str, Any]) -> None:
    config, told = check_args(application.get("args", {})), set[str]()
    for deployment in application.get("deployments", []):
        name = deployment["name"]
        if name not in NAMES:
            raise ConfigError(f"deployments: unknown name {name}, known here: {', '.join(NAMES)}")
        if name in told:
            raise ConfigError(f"deployments: {name} is there twice")
        told.add(name)
        require_agreement(name, _terms(deployment, config), leave_s=leave_s(config), stop_s=time_to_stop_s(config, name))


def _terms(deployment: Mapping[str, Any], config: AppConfig) -> Terms:
    name = cast(Name, deployment["name"])
    timeout_s = deployment.get("graceful_shutdown_timeout_s", kill_after_s(config, name))
    wait_s = deployment.get("graceful_shutdown_wait_loop_s", leave_s(config))
    told = deployment.get("autoscaling_config")
    if deployment.get("num_replicas") != "auto" and told is None:
        return Terms(timeout_s, wait_s)
    scaling = AutoscalingConfig(**(told or {}))
    return Terms(timeout_s, wait_s, scaling.policy.policy_function, scaling.min_replicas)


def _unknown(values: Any, schema: type[BaseModel], place: str) -> Iterator[str]:
    """Yield a sentence for each key that Serve would pass over."""
    if values is None:
        return
    if not isinstance(values, Mapping):
        yield f"{place.removesuffix('.')}: expected a mapping of keys to values, found {values!r}"
        return
    known = schema.model_fields
    for key, value in values.items():
        if key not in known:
            yield f"unknown key {place}{key} (value {value!r}), known here: {', '.join(known)}"
        elif key in SECTIONS:
            parts = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            for part in parts:
                yield from _unknown(part, SECTIONS[key], f"{place}{key}.")
