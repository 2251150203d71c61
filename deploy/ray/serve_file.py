"""Checks a Serve file before Serve reads it: its application's `args` are ours, its `deployments` let our programs drain.

Serve passes over keys that it does not know; here they are mistakes.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import (
    DeploymentSchema,
    HTTPOptionsSchema,
    RayActorOptionsSchema,
    ServeApplicationSchema,
    ServeDeploySchema,
    gRPCOptionsSchema,
)

from twostep.core.config import read_values
from twostep.core.errors import ConfigError
from twostep.deploy.ray.agreement import Terms, kill_after_s, require_agreement, time_to_stop_s
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
        first = cause.errors(include_url=False)[0]
        raise ConfigError(f"{source}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from cause
    ours = [one for one in values["applications"] if one["import_path"] == IMPORT_PATH]
    for application in ours:
        try:
            _check_application(application)
        except ConfigError as cause:
            raise ConfigError(f"{source}: {cause}") from cause
    return len(ours)


def _check_application(application: Mapping[str, Any]) -> None:
    config = check_args(application.get("args", {}))
    for deployment in application.get("deployments", []):
        name = deployment["name"]
        if name not in NAMES:
            raise ConfigError(f"deployments: unknown name {name}, known here: {', '.join(NAMES)}")
        require_agreement(name, _terms(deployment, config), time_to_stop_s(config, name))


def _terms(deployment: Mapping[str, Any], config: AppConfig) -> Terms:
    name = cast(Name, deployment["name"])
    timeout_s = deployment.get("graceful_shutdown_timeout_s", kill_after_s(config, name))
    if deployment.get("num_replicas") != "auto" and "autoscaling_config" not in deployment:
        return Terms(timeout_s)
    scaling = AutoscalingConfig(**deployment.get("autoscaling_config", {}))
    return Terms(timeout_s, scaling.policy.policy_function, scaling.min_replicas)


def _unknown(values: Any, schema: type[BaseModel], place: str) -> Iterator[str]:
    """Yield a sentence for each key that Serve would pass over."""
    if not isinstance(values, Mapping):
        return
    known = schema.model_fields
    for key, value in values.items():
        if key not in known:
            yield f"unknown key {place}{key} (value {value!r}), known here: {', '.join(known)}"
        elif key in SECTIONS:
            parts = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            for part in parts:
                yield from _unknown(part, SECTIONS[key], f"{place}{key}.")
